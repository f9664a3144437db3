"""A few blocks of a route: what is read there, who attends to whom, and where results go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import final

import torch
from torch import Tensor

from eyeline.budgets import at_once, budgets
from eyeline.checks import widened
from eyeline.kernels.product import Pairing, Steps
from eyeline.kernels.route import Bags, Route, bags, gathered, of_blocks, one_after_the_other
from eyeline.patterns import Causal, DocumentsApart, Full, Pattern, SameSegment, Window
from eyeline.patterns.algebra import Compound
from eyeline.planning.dense import settled
from eyeline.scores import Block, Marks, Step
from eyeline.scores.columns import ColumnsOf
from eyeline.tokens import NOBODY, Points, Tokens


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
        q = Points(*map(self._q, self.q)).unsqueeze(3)
        k = Points(*map(self._k, self.k)).unsqueeze(2)
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

    def steps(self, query: Tensor, pairing: Pairing) -> Steps | None:
        """What is done to scores and weights, of blocks (A · count, 1, rows, columns).

        query: (A, count, rows, E); pairing: the steps with the tables of all heads. None if there
        are none.
        """
        if not pairing:
            return None
        own = slice(self.of.first, self.of.first + 1)  # with steps, heads are taken one by one
        q, k = (
            Marks(position.flatten(0, 1).long().cpu(), slots.flatten(0, 1))
            for position, slots in (
                (self._q(self.q.position), self.q_slots),
                (self._k(self.k.position), self.k_slots),
            )
        )
        wide = widened(query)
        block = Block(
            wide.flatten(0, 1).unsqueeze(1), self.of.work.scale, q, k,
            self.of.row, self.of.first, ColumnsOf(q.position, k.position),
        )  # fmt: skip
        of_head = ((s, None if table is None else table.of_heads(own)) for s, table in pairing)
        return Steps(tuple(of_head), block)

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


# What is done along a route: a few heads at a time, and of these a few blocks at a time.

# What a pair of a piece takes, in bytes: its score, mask and bools.
_PAIR = 16


@final
@dataclass(frozen=True, eq=False)
class Routed:
    """What is done along a route. pattern: what the pairs that meet must be allowed besides.

    groups: query heads to each key head. steps: what is done to scores and weights, in order, each
    with the first distance of its table.
    """

    route: Route
    pattern: Pattern
    q_tokens: Tokens
    k_tokens: Tokens
    scale: float
    groups: int = 1
    steps: tuple[tuple[Step, int], ...] = ()

    @cached_property
    def heads(self) -> tuple[Heads, ...]:
        """All query heads of all batch rows. Those of one pattern are taken together if short."""
        batch, heads = self.route.queries.shape[:2]
        found = []
        for row in range(batch):
            tokens = self.q_tokens.row(row), self.k_tokens.row(row)
            rule = settled(self.pattern, *tokens)
            patterns = [rule.at(row, head) for head in range(heads)]
            for pattern, alike in groupby(range(heads), patterns.__getitem__):
                found += [Heads(self, row, *some, pattern, *tokens) for some in self._runs(alike)]
        return tuple(found)

    def places(self, slots: Tensor) -> tuple[int, int]:
        """The most lanes that heads have together, and the places of a lane: slots (B, H, A, M)."""
        return max((heads.lanes for heads in self.heads), default=0), slots.shape[3]

    def _runs(self, heads: Iterable[int]) -> Iterator[tuple[int, int]]:
        """The first head of each few, and how many: of one key head, or each of its own."""
        places = self.route.queries[:1, :1].numel() + self.route.keys[:1, :1].numel()
        # Steps work for one head: it has a table of its own, and dropout hashes its number.
        most = 1 if self.steps else at_once(places, budgets.routed_together)
        for _, alike in groupby(heads, lambda head: head // self.groups if self.groups > 1 else 0):
            run = list(alike)
            yield from ((run[i], len(run[i : i + most])) for i in range(0, len(run), most))


@final
@dataclass(frozen=True, eq=False)
class Heads:
    """``count`` query heads of one batch row, from ``first`` on, in which one pattern holds.

    Their sequences are read as one after the other: slot s of the n-th is slot n · L + s. They have
    one sequence of keys, if query heads share key heads, or else as many. A is the number of all
    their lanes.
    """

    work: Routed
    row: int
    first: int
    count: int
    pattern: Pattern
    q_tokens: Tokens
    k_tokens: Tokens

    @property
    def lanes(self) -> int:
        """A."""
        return self.count * self.work.route.lanes

    def of(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Their queries (count · L, E), keys (n · S, E) and values (n · S, Ev)."""
        return self.of_queries(query), self.of_keys(key), self.of_keys(value)

    def of_queries(self, x: Tensor) -> Tensor:
        """What the queries have, (B, H, L, …): (count · L, …), a view where x is dense."""
        return self._own(x).flatten(0, 1)

    def of_keys(self, x: Tensor) -> Tensor:
        """What the keys have, (B, Hk, S, …): (n · S, …) of n sequences, a view where x is dense."""
        first = self.first // self.work.groups
        return x[self.row, first : first + self._key_sequences].flatten(0, 1)

    def clear(self, places: Tensor) -> None:
        """Write 0 to those places of keys (A, M', …) that pieces add to, or leave out."""
        shared = self.work.route.columns - self.work.route.step
        (places if shared < 0 else places[:, :shared]).zero_()

    def add_to_keys(self, total: Tensor, found: Tensor) -> None:
        """Add to ``total`` (B, Hk, S, …), which holds nothing before its keys' first heads, what
        was found for these keys, (n · S, …)."""
        place = self.of_keys(total)
        (place.add_ if self.first % self.work.groups else place.copy_)(found)

    @cached_property
    def query_bags(self) -> Bags:
        """The places of each query, for both passes."""
        return bags(self._own(self.work.route.queries), self.q_tokens.length)

    def key_bags(self) -> Bags:
        """The places of each key."""
        return bags(self._by_key_sequence(), self.k_tokens.length)

    @property
    def queries(self) -> Tensor:
        """The slots that are read for the queries, (A, M)."""
        own = self._own(self.work.route.queries)
        return one_after_the_other(own, self.q_tokens.length).flatten(0, 1)

    @property
    def keys(self) -> Tensor:
        """The slots that are read for the keys, (A, M')."""
        found = one_after_the_other(self._by_key_sequence(), self.k_tokens.length)
        return found.flatten(0, 1)

    @property
    def labels(self) -> tuple[Tensor, Tensor] | None:
        """Those of queries and keys, (A, M) and (A, M')."""
        q, k = self.work.route.q_labels, self.work.route.k_labels
        if q is None or k is None:
            return None
        return self._own(q).flatten(0, 1), self._own(k).flatten(0, 1)

    def pieces(self, place: int) -> Iterator[Piece]:
        """A few blocks of every lane at a time; place: the bytes that are read for a place."""
        route = self.work.route
        block = route.rows * route.columns * _PAIR + (route.rows + route.columns) * place
        count = max(budgets.routed // (block * max(self.lanes, 1)), 1)
        q = self._points(self._own(route.queries), self.q_tokens)
        k = self._points(self._own(route.keys), self.k_tokens)
        slots = self.queries, self.keys
        for first in range(0, route.blocks, count):
            yield Piece(self, first, min(count, route.blocks - first), *slots, q, k)

    @property
    def _key_sequences(self) -> int:
        return self.count if self.work.groups == 1 else 1

    def _by_key_sequence(self) -> Tensor:
        """The route's slots of keys, (n, A / n, M')."""
        own, sequences = self._own(self.work.route.keys), self._key_sequences
        return own.reshape(sequences, self.lanes // sequences, own.shape[2])

    def _own(self, x: Tensor) -> Tensor:
        """(B, H, …) to (count, …)."""
        return x[self.row, self.first : self.first + self.count]

    def _points(self, slots: Tensor, tokens: Tokens) -> Points:
        narrow, lanes = _compares_only(self.pattern), slots.flatten(0, 1)
        on_device = tokens.mapped(lambda column: column.to(slots.device))
        position, document, segment = (
            None if x is None else gathered(_narrow(x) if narrow else x, lanes, NOBODY)
            for x in (on_device.positions, on_device.documents, on_device.segments)
        )
        assert position is not None
        return Points.of(position, document, segment)


def _compares_only(pattern: Pattern) -> bool:
    """Whether 32 bits do for all that a pattern computes of positions that fit into them."""
    if isinstance(pattern, Compound):
        return all(map(_compares_only, pattern.parts))
    if isinstance(pattern, Window):
        widths = [x for x in (pattern.left, pattern.right) if x is not None]
        return all(x <= torch.iinfo(torch.int32).max for x in widths)
    return isinstance(pattern, (Full, Causal, SameSegment, DocumentsApart))


def _narrow(numbers: Tensor) -> Tensor:
    """As int32 where they fit: half as much to read and compare."""
    if numbers.device.type != "cpu" or not numbers.numel():
        return numbers
    fits = int(numbers.max()) <= torch.iinfo(torch.int32).max
    return numbers.to(torch.int32) if fits else numbers
