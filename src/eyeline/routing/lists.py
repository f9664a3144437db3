"""A route of lists: each query with keys of its own, as many as it has."""

from __future__ import annotations

import torch
from torch import Tensor

from eyeline.kernels.route import Route
from eyeline.tokens import NOBODY


def listed(rows: Tensor, slots: Tensor, shape: tuple[int, int, int], width: int) -> Route:
    """Pairs of a query and a key to blocks of one query and ``width`` keys; memory is theirs.

    rows: int64 (P,), queries by their number among all of shape (B, H, L); slots: (P,), the keys.
    A query with more keys than ``width`` stands in several blocks, which the kernel merges. So
    what a block computes depends on its own query's keys alone, not on how many others have.
    """
    heads, length = shape[0] * shape[1], shape[2]
    order = rows.argsort(stable=True)
    rows, slots = rows[order], slots[order]
    counts = torch.bincount(rows, minlength=heads * length)
    rank = torch.arange(len(rows), device=rows.device) - _before(counts)[rows]
    blocks = (counts + width - 1) // width
    of_head = blocks.view(heads, length).sum(1)
    most = int(of_head.max()) if heads else 0
    block = (_before(blocks)[rows] + rank // width) - _before(of_head)[rows // max(length, 1)]
    keys = rows.new_full((heads, most, width), NOBODY)
    keys[rows // max(length, 1), block, rank % width] = slots
    queries = rows.new_full((heads, most), NOBODY)
    asking = torch.arange(heads * length, device=rows.device).repeat_interleave(blocks)
    head = asking // max(length, 1)
    place = torch.arange(len(asking), device=rows.device) - _before(of_head)[head]
    queries[head, place] = asking % max(length, 1)
    return Route(
        queries.view(*shape[:2], 1, most), keys.view(*shape[:2], 1, most * width),
        1, width, width,
    )  # fmt: skip


def _before(counts: Tensor) -> Tensor:
    """How many come before each."""
    return counts.cumsum(0) - counts
