"""Rows of different lengths as batches by tokens: alike together, anew in each epoch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import final

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument
from eyeline.hashing import generator, mixed
from eyeline.tokens import Tokens
from eyeline.training.tables import Row


@final
class RowOrder:
    """Which rows the batch of a step has: a pure function of (seed, step).

    Rows are ordered by size, equal ones by chance, and cut into batches of at most
    ``batch_tokens`` slots, pads included; the batches of an epoch come in an order drawn anew.
    sizes: of each row, in slots. count: batches per epoch, the same in each.
    """

    def __init__(self, sizes: Sequence[int], *, batch_tokens: int, seed: int) -> None:
        self._sizes, self._seed = torch.tensor(sizes), seed
        self._edges = _edges(sorted(sizes), batch_tokens)
        self.count = len(self._edges) - 1
        self._epoch = lru_cache(maxsize=1)(self._drawn)

    def at(self, step: int) -> list[int]:
        """The rows of step 1, 2, …."""
        epoch, index = divmod(step - 1, self.count)
        rows, order = self._epoch(epoch)
        batch = order[index]
        return rows[self._edges[batch] : self._edges[batch + 1]]

    def _drawn(self, epoch: int) -> tuple[list[int], list[int]]:
        drawn = generator(self._seed, "rows", epoch)
        shuffled = torch.randperm(len(self._sizes), generator=drawn)
        by_size = shuffled[self._sizes[shuffled].argsort(stable=True)]
        return by_size.tolist(), torch.randperm(self.count, generator=drawn).tolist()


def _edges(sizes: Sequence[int], batch_tokens: int) -> list[int]:
    """Where batches begin, in rows ordered by size; a row longer than a batch is one alone."""
    edges = [0]
    for place, size in enumerate(sizes):
        if place > edges[-1] and size * (place - edges[-1] + 1) > batch_tokens:
            edges.append(place)
    return [*edges, len(sizes)]


def padded(rows: Sequence[Sequence[int]], fill: int) -> tuple[Tensor, Tokens | None]:
    """Ids (B, longest), filled up on the right, and their tokens; None if none is filled up."""
    lengths = [len(row) for row in rows]
    longest = max(lengths)
    ids = torch.tensor([list(row) + [fill] * (longest - len(row)) for row in rows])
    if min(lengths) == longest:
        return ids, None
    return ids, Tokens.padded(lengths, "right")


def split_rows(
    rows: Sequence[Row], share: float, seed: int
) -> tuple[list[Row], list[Row]]:  # fmt: skip
    """Rows to train on, and rows held out: those whose first field the seed draws.

    A row is held out if a number from 0 to 1 that depends on (seed, first field) alone is below
    ``share``: equal texts are on one side, whatever file and order they come in.

    Raises InvalidArgument if either side is empty.
    """
    if not share:
        return list(rows), []
    held = [mixed(seed, "row", row.first) < share * 2**63 for row in rows]
    parts = ([r for r, h in zip(rows, held, strict=True) if not h],
             [r for r, h in zip(rows, held, strict=True) if h])  # fmt: skip
    if not all(parts):
        raise InvalidArgument(
            f"{len(rows)} rows are too few to hold {share:g} of them out; take more rows, another "
            "share, or held-out rows of their own"
        )
    return parts
