"""Route: which blocks of queries attend to which blocks of keys; every router makes one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.nn import functional

from eyeline.errors import InvalidArgument
from eyeline.kernels.merge import shares_by_slot
from eyeline.tokens import NOBODY


@final
@dataclass(frozen=True, eq=False)
class Route:
    """Block n of a lane: its queries ``queries[n·rows : (n+1)·rows]`` look at its keys
    ``keys[n·step : n·step + columns]``.

    queries: int64 (B, H, A, N·rows), slots of the queries of each batch row and query head, in
    A lanes of N blocks; keys: int64 (B, H, A, (N-1)·step + columns), slots of the keys. -1 is
    nobody: an empty place. One slot may stand in many places; a pair that meets m times counts m
    times, as if its score were log m higher.
    q_labels, k_labels: integers of the same shapes; only places of equal label look at each other.
    band: bool (rows, columns), the pairs of every block that may look; None for all.

    All on one device. Raises InvalidArgument for shapes that do not fit together.
    """

    queries: Tensor
    keys: Tensor
    rows: int
    columns: int
    step: int
    q_labels: Tensor | None = None
    k_labels: Tensor | None = None
    band: Tensor | None = None

    def __post_init__(self) -> None:
        if self.rows < 1 or self.columns < 1 or self.step < 1:
            raise InvalidArgument(f"{self.sizes}: rows, columns and step are at least 1")
        if self.queries.dim() != 4 or self.keys.dim() != 4 or self.queries.shape[3] % self.rows:
            raise InvalidArgument(f"{self.sizes}: (B, H, A, blocks · rows) and (B, H, A, places)")
        reach = (self.blocks - 1) * self.step + self.columns if self.blocks else 0
        if self.queries.shape[:3] != self.keys.shape[:3] or self.keys.shape[3] != reach:
            raise InvalidArgument(f"{self.sizes}: as many lanes, and {reach} places of keys")
        labels = (self.q_labels, self.queries), (self.k_labels, self.keys)
        given = [label for label, _ in labels if label is not None]
        if len(given) == 1 or any(x is not None and x.shape != y.shape for x, y in labels):
            raise InvalidArgument(f"{self.sizes}: labels of both, of the shapes of the slots")
        if self.band is not None and self.band.shape != (self.rows, self.columns):
            raise InvalidArgument(f"{self.sizes}: a band of shape {tuple(self.band.shape)}")

    @property
    def lanes(self) -> int:
        """A: how many times a sequence may be ordered, as in the rounds of LSH."""
        return self.queries.shape[2]

    @property
    def blocks(self) -> int:
        """N: the blocks of a lane."""
        return self.queries.shape[3] // self.rows

    @property
    def pairs(self) -> int:
        """How many pairs of places are computed, allowed or not: all rows and heads together."""
        return self.queries.shape[:3].numel() * self.blocks * self.rows * self.columns

    @property
    def apart(self) -> bool:
        """Whether each place of a key is in one block."""
        return self.step == self.columns

    @property
    def sizes(self) -> str:
        """The shapes, for messages."""
        shapes = f"queries {tuple(self.queries.shape)}, keys {tuple(self.keys.shape)}"
        return f"route with {shapes}, rows={self.rows}, columns={self.columns}, step={self.step}"


def gathered(x: Tensor, slots: Tensor, empty: int) -> Tensor:
    """x[slots] of one dimension; ``empty`` where nobody is."""
    if not len(x):
        return torch.full_like(slots, empty, dtype=x.dtype)
    taken: Tensor = x[slots.clamp(min=0)]
    return taken.masked_fill(slots == NOBODY, empty)


def of_blocks(x: Tensor, size: int, step: int, first: int, count: int) -> Tensor:
    """Places (A, M, …) as blocks (A, count, size, …), from block ``first`` on: a view."""
    lanes, along = x.stride(0), x.stride(1)
    shape = (x.shape[0], count, size, *x.shape[2:])
    stride = (lanes, step * along, along, *x.stride()[2:])
    return torch.as_strided(x, shape, stride, x.storage_offset() + first * step * along)


# Sums of the rows that stand for one slot: how results in many places come back to a sequence.


class Bags(NamedTuple):
    """For each slot the places at which it stands.

    torch's ``index_add_`` adds row by row in one thread; here each slot collects its own rows, in
    an order that does not depend on threads, so that sums are the same in every run.

    slots: int64 (P,), what stands at each place, L for nobody. places: those of the first slot,
    then those of the next, …; starts: int64 (L,), where in them each slot's begin.
    """

    slots: Tensor
    places: Tensor
    starts: Tensor

    def sums(self, rows: Tensor, share: Tensor | None = None) -> Tensor:
        """Σ share · row over the places of each slot: rows (…, E) to (L, E)."""
        weight = None if share is None else share.flatten()[self.places]
        return weighted(self.places, rows.reshape(-1, rows.shape[-1]), weight, self.starts)

    def shares(self, lse: Tensor) -> tuple[Tensor, Tensor]:
        """lse (…,) of the places to that of each slot, -inf for none, and each place's share."""
        return shares_by_slot(lse.flatten(), self.slots, len(self.starts))


def bags(slots: Tensor, length: int) -> Bags:
    """Of n sequences, one after the other: slots int64 (n, A, M), below ``length``, -1 for nobody.

    A: lanes.
    """
    total = len(slots) * length
    flat = one_after_the_other(slots, length).masked_fill(slots == NOBODY, total).flatten()
    counts = torch.bincount(flat, minlength=total + 1)
    ends = counts.cumsum(0)
    there = int(ends[-1] - counts[-1])
    places = _once_a_lane(slots, length, there)
    return Bags(flat, _sorted(slots, there) if places is None else places, (ends - counts)[:-1])


def one_after_the_other(slots: Tensor, length: int) -> Tensor:
    """Slots (n, A, M) of n sequences as slots of one of n · length.

    For nobody the first of his own sequence: what stands in another one is not to be read at all,
    since 0 times NaN is NaN.
    """
    start = torch.arange(len(slots), device=slots.device)[:, None, None] * length
    return slots.clamp(min=0) + start


def _sorted(slots: Tensor, there: int) -> Tensor:
    """The places sequence by sequence and slot by slot; somebody stands at ``there``."""
    flat = slots.flatten(1)
    order = flat.argsort(dim=1, stable=True)
    start = torch.arange(len(slots), device=slots.device).unsqueeze(1) * flat.shape[1]
    places = order + start
    if there == flat.numel():
        return places.flatten()
    return places[flat.gather(1, order) != NOBODY]


def _once_a_lane(slots: Tensor, length: int, there: int) -> Tensor | None:
    """The same, if no slot stands twice in a lane, without sorting; None if one does."""
    sequences, lanes, size = slots.shape
    if length > 2 * size:  # such a table would be larger than the slots
        return None
    places = torch.arange(slots.numel(), device=slots.device).view_as(slots)
    found = slots.new_full((sequences, lanes, length + 1), -1)
    own = slots.masked_fill(slots == NOBODY, length)
    found = found.scatter_(2, own, places)[..., :length].mT
    if there == sequences * lanes * length:
        return found.flatten() if bool((found >= 0).all()) else None
    listed: Tensor = found[found >= 0]
    return listed if len(listed) == there else None


def weighted(
    index: Tensor, x: Tensor, weight: Tensor | None, starts: Tensor | None = None
) -> Tensor:
    """Σ weight · x[index] over each row of index (m, n), or over what begins at each of starts."""
    if not index.numel() or not x.shape[1]:
        return x.new_zeros(len(index) if starts is None else len(starts), x.shape[1])
    weight = None if weight is None else weight.reshape(index.shape)
    return functional.embedding_bag(index, x, starts, mode="sum", per_sample_weights=weight)
