"""A route, head by head and a few blocks at a time: what is read there, and where it is put."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from eyeline.kernels.steps import Steps
from eyeline.patterns import Causal, Full, Pattern, SameDocument, Window
from eyeline.patterns.algebra import Compound
from eyeline.planning.dense import settled
from eyeline.routing.route import Route, gathered, of_blocks
from eyeline.scores import Block, Dropout, Marks
from eyeline.scores.columns import ColumnsOf
from eyeline.tokens import NOBODY, Points, Tokens

# Working memory of one piece, in bytes, and what a pair takes of it: its score, mask and bools.
_BUDGET, _PAIR = 16 << 20, 16


@final
@dataclass(frozen=True, eq=False)
class Routed:
    """What is done along a route. pattern: what the pairs that meet must be allowed besides.

    groups: query heads to each key head.
    """

    route: Route
    pattern: Pattern
    q_tokens: Tokens
    k_tokens: Tokens
    scale: float
    groups: int = 1
    dropout: Dropout | None = None

    def heads(self) -> Iterator[Head]:
        """Each query head of each batch row."""
        queries, keys = self.route.queries, self.route.keys
        for row in range(queries.shape[0]):
            tokens = self.q_tokens.row(row), self.k_tokens.row(row)
            rule = settled(self.pattern, *tokens)
            for head in range(queries.shape[1]):
                own = queries[row, head], keys[row, head]
                yield Head(self, row, head, rule.at(row, head), *own, *tokens)


@final
@dataclass(frozen=True, eq=False)
class Head:
    """One query head of one batch row: slots of its queries (A, M) and keys (A, M').

    pattern: the one that holds in it.
    """

    work: Routed
    row: int
    head: int
    pattern: Pattern
    queries: Tensor
    keys: Tensor
    q_tokens: Tokens
    k_tokens: Tokens

    def of(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Its queries (L, E), keys (S, E) and values (S, Ev)."""
        own = self.head // self.work.groups
        return query[self.row, self.head], key[self.row, own], value[self.row, own]

    def pieces(self, place: int) -> Iterator[Piece]:
        """A few blocks of every lane at a time; place: the bytes that are read for a place."""
        route = self.work.route
        block = route.rows * route.columns * _PAIR + (route.rows + route.columns) * place
        count = max(_BUDGET // (block * max(route.lanes, 1)), 1)
        q, k = self._points(self.queries, self.q_tokens), self._points(self.keys, self.k_tokens)
        for first in range(0, route.blocks, count):
            yield Piece(self, first, min(count, route.blocks - first), q, k)

    def _points(self, slots: Tensor, tokens: Tokens) -> Points:
        narrow = _compares_only(self.pattern)
        position, document = (
            None if x is None else gathered(_narrow(x) if narrow else x, slots, NOBODY)
            for x in (tokens.positions.to(slots.device), _on(tokens.documents, slots.device))
        )
        assert position is not None
        return Points(position, document if document is not None else torch.zeros_like(position))


@final
@dataclass(frozen=True, eq=False)
class Piece:
    """``count`` blocks of every lane of a head; tensors of it are (A, count, rows or columns, …).

    q, k: who stands in the places of the head.
    """

    of: Head
    first: int
    count: int
    q: Points
    k: Points

    def rows(self, x: Tensor) -> Tensor:
        """What a sequence (L, …) has for the queries, copied; nobody's places have slot 0's."""
        return _taken(x, self.q_slots)

    def columns(self, x: Tensor) -> Tensor:
        """What a sequence (S, …) has for the keys; blocks that overlap share their memory."""
        route = self.of.work.route
        start = self.first * route.step
        places = self.of.keys[:, start : start + (self.count - 1) * route.step + route.columns]
        return of_blocks(_taken(x, places), route.columns, route.step, 0, self.count)

    def put(self, places: Tensor, blocks: Tensor) -> None:
        """Write results of the queries to their places (A, M, …)."""
        self._q(places).copy_(blocks)

    def add(self, places: Tensor, blocks: Tensor) -> None:
        """Add results of the keys to their places (A, M', …), or write them where all is apart."""
        route = self.of.work.route
        view = of_blocks(places, route.columns, route.step, self.first, self.count)
        if route.apart:
            view.copy_(blocks)
            return
        # Neighbouring blocks share places. Slices no wider than a step do not overlap.
        width = route.step if self.count > 1 else route.columns
        for first in range(0, route.columns, width):
            end = min(first + width, route.columns)
            view[:, :, first:end].add_(blocks[:, :, first:end])

    @property
    def q_slots(self) -> Tensor:
        """The slots of the queries, (A, count, rows)."""
        return self._q(self.of.queries)

    @property
    def k_slots(self) -> Tensor:
        """The slots of the keys, (A, count, columns)."""
        return self._k(self.of.keys)

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
        if route.q_labels is not None and route.k_labels is not None:
            own = self.of.row, self.of.head
            labels = self._q(route.q_labels[own]), self._k(route.k_labels[own])
            mask = _both(mask, labels[0].unsqueeze(3) == labels[1].unsqueeze(2))
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
            self.of.row, self.of.head, ColumnsOf(q, k),
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


def _compares_only(pattern: Pattern) -> bool:
    """Whether 32 bits do for all that a pattern computes of positions that fit into them."""
    if isinstance(pattern, Compound):
        return all(map(_compares_only, pattern.parts))
    if isinstance(pattern, Window):
        widths = [x for x in (pattern.left, pattern.right) if x is not None]
        return all(x <= torch.iinfo(torch.int32).max for x in widths)
    return isinstance(pattern, (Full, Causal, SameDocument))


def _on(x: Tensor | None, device: torch.device) -> Tensor | None:
    return None if x is None else x.to(device)


def _narrow(numbers: Tensor) -> Tensor:
    """As int32 where they fit: half as much to read and compare."""
    if numbers.device.type != "cpu" or not numbers.numel():
        return numbers
    fits = int(numbers.max()) <= torch.iinfo(torch.int32).max
    return numbers.to(torch.int32) if fits else numbers


def _taken(x: Tensor, slots: Tensor) -> Tensor:
    taken = x.index_select(0, slots.clamp(min=0).flatten())
    return taken.view(*slots.shape, *x.shape[1:])
