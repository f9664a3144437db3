"""Sums of the rows that stand for one slot: how results in many places come back to a sequence."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor
from torch.nn import functional

from eyeline.tokens import NOBODY


@final
class Bags:
    """For each of ``length`` slots the places at which it stands; slots: int64, -1 for nobody.

    torch's ``index_add_`` adds row by row in one thread; here each slot collects its own rows, in
    an order that does not depend on threads, so that sums are the same in every run.
    """

    def __init__(self, slots: Tensor, length: int) -> None:
        flat = slots.flatten()
        self._slots = flat.masked_fill(flat == NOBODY, length)
        counts = torch.bincount(self._slots, minlength=length + 1)
        ends = counts.cumsum(0)
        self._starts = (ends - counts)[:length]
        self._places = self._slots.argsort(stable=True)[: int(ends[length - 1]) if length else 0]
        self._length = length

    def sums(self, rows: Tensor, share: Tensor | None = None) -> Tensor:
        """Σ share · row over the places of each slot: rows (…, E) to (length, E)."""
        flat = rows.reshape(-1, rows.shape[-1])
        if not len(self._places) or not flat.shape[1]:
            return flat.new_zeros(self._length, flat.shape[1])
        weights = None if share is None else share.flatten()[self._places]
        return functional.embedding_bag(
            self._places, flat, self._starts, mode="sum", per_sample_weights=weights
        )

    def shares(self, lse: Tensor) -> tuple[Tensor, Tensor]:
        """lse (…,) of the places to that of each slot, -inf for none, and each place's share."""
        flat = lse.flatten()
        top = flat.new_full((self._length + 1,), -torch.inf)
        top = top.scatter_reduce(0, self._slots, flat, "amax")
        top = top.masked_fill(top == -torch.inf, 0.0)
        weight = (flat - top[self._slots]).exp_()
        total = torch.zeros_like(top).index_add_(0, self._slots, weight)
        share = weight.div_(total.masked_fill(total == 0.0, 1.0)[self._slots])
        return total.log_().add_(top)[:-1], share
