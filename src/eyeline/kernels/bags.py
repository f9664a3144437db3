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

    places: those of the first slot, then those of the next, …; starts: where in them each slot's
    begin.
    """

    def __init__(self, slots: Tensor, length: int) -> None:
        flat = slots.flatten()
        self._slots = flat.masked_fill(flat == NOBODY, length)
        self._length = length
        counts = torch.bincount(self._slots, minlength=length + 1)
        ends = counts.cumsum(0)
        self.starts = (ends - counts)[:length]
        there = int(ends[-1] - counts[-1])
        once = _once_a_lane(self._slots.view(slots.shape), length, there)
        self.places = once if once is not None else self._slots.argsort(stable=True)[:there]

    def sums(self, rows: Tensor, share: Tensor | None = None) -> Tensor:
        """Σ share · row over the places of each slot: rows (…, E) to (length, E)."""
        weight = None if share is None else share.flatten()[self.places]
        return weighted(self.places, rows.reshape(-1, rows.shape[-1]), weight, self.starts)

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


def _once_a_lane(slots: Tensor, length: int, there: int) -> Tensor | None:
    """The places slot by slot, where no slot stands twice in a lane: what sorting would find.

    slots (A, M), ``length`` for nobody; there: in how many places somebody stands.
    """
    lanes, size = slots.shape
    if lanes * length > 2 * slots.numel():  # such a table would be larger than the slots
        return None
    places = torch.arange(lanes * size, device=slots.device).view(lanes, size)
    found = slots.new_full((lanes, length + 1), -1).scatter_(1, slots, places)[:, :length].mT
    if lanes * length == there:
        return found.flatten() if bool((found >= 0).all()) else None
    listed = found[found >= 0]
    return listed if len(listed) == there else None


def weighted(
    index: Tensor, x: Tensor, weight: Tensor | None, starts: Tensor | None = None
) -> Tensor:
    """Σ weight · x[index] over each row of index (m, n), or over what begins at each of starts."""
    if not index.numel() or not x.shape[1]:
        return x.new_zeros(len(index) if starts is None else len(starts), x.shape[1])
    weight = None if weight is None else weight.reshape(index.shape)
    return functional.embedding_bag(index, x, starts, mode="sum", per_sample_weights=weight)
