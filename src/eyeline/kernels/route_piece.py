"""A few blocks of a route: what is read there, who may look at whom, and where results are put."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from torch import Tensor

from eyeline.kernels.steps import Steps
from eyeline.patterns import Full
from eyeline.routing.route import of_blocks
from eyeline.scores import Block, Marks
from eyeline.scores.columns import ColumnsOf
from eyeline.tokens import NOBODY, Points

if TYPE_CHECKING:
    from eyeline.kernels.route_heads import Heads


@final
@dataclass(frozen=True, eq=False)
class Piece:
    """``count`` blocks of every lane of some heads; its tensors are (A, count, rows or columns, …).

    queries, keys: the slots that are read for the places of the heads, (A, M) and (A, M'). q, k:
    who stands there.
    """

    of: Heads
    first: int
    count: int
    queries: Tensor
    keys: Tensor
    q: Points
    k: Points

    def rows(self, x: Tensor) -> Tensor:
        """What a sequence (L, …) has for the queries, copied."""
        return _taken(x, self.q_slots)

    def columns(self, x: Tensor) -> Tensor:
        """What a sequence (S, …) has for the keys; blocks that overlap share their memory."""
        route = self.of.work.route
        start = self.first * route.step
        places = self.keys[:, start : start + (self.count - 1) * route.step + route.columns]
        return of_blocks(_taken(x, places), route.columns, route.step, 0, self.count)

    def put(self, places: Tensor, blocks: Tensor) -> None:
        """Write results of the queries to their places (A, M, …)."""
        self._q(places).copy_(blocks)

    def add(self, places: Tensor, blocks: Tensor) -> None:
        """Add results of the keys to their places (A, M', …), which ``Heads.clear`` made ready.

        A block's last step is in no block before it, and is written; the rest is added to what
        those wrote. Pieces come in their order.
        """
        route = self.of.work.route
        view = of_blocks(places, route.columns, route.step, self.first, self.count)
        shared = max(route.columns - route.step, 0)
        view[:, :, shared:].copy_(blocks[:, :, shared:])
        # Slices no wider than a step do not overlap.
        for first in range(0, shared, route.step):
            end = min(first + route.step, shared)
            view[:, :, first:end].add_(blocks[:, :, first:end])

    @property
    def q_slots(self) -> Tensor:
        """The slots of the queries, (A, count, rows)."""
        return self._q(self.queries)

    @property
    def k_slots(self) -> Tensor:
        """The slots of the keys, (A, count, columns)."""
        return self._k(self.keys)

    @property
    def is_somebody(self) -> Tensor:
        """Whether a query stands in a place, bool (A, count, rows)."""
        return self._q(self.q.position) != NOBODY

    def mask(self) -> Tensor | None:
        """Who may look at whom, bool (A, count, rows, columns); None if all may."""
        route, pattern = self.of.work.route, self.of.pattern
        q = Points(*(self._q(x).unsqueeze(3) for x in self.q))
        k = Points(*(self._k(x).unsqueeze(2) for x in self.k))
        mask = None
        if pattern != Full():
            mask = pattern.answers(q, k)
        for somebody in (q.position != NOBODY, k.position != NOBODY):
            mask = mask if bool(somebody.all()) else _both(mask, somebody)
        if self.of.labels is not None:
            own, other = self._q(self.of.labels[0]), self._k(self.of.labels[1])
            mask = _both(mask, own.unsqueeze(3) == other.unsqueeze(2))
        mask = _both(mask, route.band)
        shape = (*q.position.shape[:3], route.columns)
        return None if mask is None else mask.expand(shape)

    def steps(self, query: Tensor) -> Steps | None:
        """Dropout of the pairs, with blocks (A · count, 1, rows, columns); None if there is none.

        query: (A, count, rows, E).
        """
        dropout = self.of.work.dropout
        if dropout is None:
            return None
        q, k = self.q_slots.flatten(0, 1), self.k_slots.flatten(0, 1)
        marks = Marks(q, q), Marks(k, k)  # dropout asks for slots only
        block = Block(
            query.flatten(0, 1).unsqueeze(1), self.of.work.scale, *marks,
            self.of.row, self.of.first, ColumnsOf(q, k),
        )  # fmt: skip
        return Steps(((dropout, None),), block)

    def _q(self, x: Tensor) -> Tensor:
        rows = self.of.work.route.rows
        return of_blocks(x, rows, rows, self.first, self.count)

    def _k(self, x: Tensor) -> Tensor:
        route = self.of.work.route
        return of_blocks(x, route.columns, route.step, self.first, self.count)


def _both(mask: Tensor | None, other: Tensor | None) -> Tensor | None:
    if mask is None or other is None:
        return other if mask is None else mask
    return mask & other


def _taken(x: Tensor, slots: Tensor) -> Tensor:
    taken = x.index_select(0, slots.flatten())
    return taken.view(*slots.shape, *x.shape[1:])
