"""Who attends to whom nearby: all, the past, a window, a chunk, a segment, a document."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import final

import torch
from torch import Tensor

from eyeline.checks import check_whole
from eyeline.errors import InvalidArgument
from eyeline.patterns.base import FULL, UNBOUNDED, Bounds, Pattern, from_tests
from eyeline.tokens import Points, Tokens

# Everybody may look at everybody.


@final
@dataclass(frozen=True)
class Full(Pattern):
    """allows(i, j) = True: dense attention."""

    compares_positions = False

    def allows(self, q: Points, k: Points) -> Tensor:
        return torch.ones_like(q.position + k.position, dtype=torch.bool)

    def verdict(self, q: Bounds, k: Bounds) -> Tensor:
        return torch.full_like(q.min + k.min, FULL, dtype=torch.uint8)


# Nobody looks into the future.


@final
@dataclass(frozen=True)
class Causal(Pattern):
    """allows(i, j) = (j <= i), by position.

    With fewer queries than keys the queries are the last ones (lower-right), so that a cached
    step equals the full run. torch's ``is_causal`` is upper-left there.
    """

    def allows(self, q: Points, k: Points) -> Tensor:
        return k.position <= q.position

    def verdict(self, q: Bounds, k: Bounds) -> Tensor:
        return from_tests(full=k.max <= q.min, some=k.min <= q.max)

    def signature(self, q: Bounds, k: Bounds) -> tuple[Tensor, ...]:
        return (q.min - k.min,)


# Neighbours: a band around the diagonal.


@final
@dataclass(frozen=True)
class Window(Pattern):
    """allows(i, j) = (i - left <= j <= i + right), by position.

    left, right: how many neighbours on each side, the token itself not counted. None: no limit.
    ``Window(0, 0)`` looks only at itself. ``sliding_window(size)`` is ``Causal() & Window(size -
    1, 0)``: size keys, the token included.

    Raises InvalidArgument for a negative width.
    """

    left: int | None
    right: int | None

    def __post_init__(self) -> None:
        for name, width in (("left", self.left), ("right", self.right)):
            if width is not None:
                check_whole(f"window {name}", width, least=0)

    @property
    def _limits(self) -> tuple[int, int]:
        left = self.left if self.left is not None else UNBOUNDED
        return left, self.right if self.right is not None else UNBOUNDED

    def allows(self, q: Points, k: Points) -> Tensor:
        distance = q.position - k.position
        # A side without a limit is not asked: its number is too large for int32 positions.
        allowed = [] if self.left is None else [distance <= self.left]
        allowed += [] if self.right is None else [k.position - q.position <= self.right]
        return reduce(torch.logical_and, allowed or [distance == distance])

    def verdict(self, q: Bounds, k: Bounds) -> Tensor:
        left, right = self._limits
        least, most = q.min - k.max, q.max - k.min
        return from_tests(
            full=(most <= left) & (least >= -right), some=(least <= left) & (most >= -right)
        )

    def signature(self, q: Bounds, k: Bounds) -> tuple[Tensor, ...]:
        return (q.min - k.min,)


# Blocks of equal size along the diagonal, and their neighbours.


@final
@dataclass(frozen=True)
class Chunks(Pattern):
    """allows(i, j) = (-right <= ⌊i / size⌋ - ⌊j / size⌋ <= left), by position.

    left, right: how many chunks before and after the token's own are seen too. None: no limit.
    ``Chunks(size)`` sees its own chunk only; ``Chunks(size, 1, 1)`` is BigBird's window (Zaheer et
    al. 2020), ``Causal() & Chunks(size, left=1)`` Transformer-XL's memory at training time (Dai et
    al. 2019).

    Raises InvalidArgument for a size below 1 or a negative number of chunks.
    """

    size: int
    left: int | None = 0
    right: int | None = 0

    def __post_init__(self) -> None:
        check_whole("chunks size", self.size, least=1)
        for name, count in (("left", self.left), ("right", self.right)):
            if count is not None:
                check_whole(f"chunks {name}", count, least=0)

    @property
    def _limits(self) -> tuple[int, int]:
        left = self.left if self.left is not None else UNBOUNDED
        return left, self.right if self.right is not None else UNBOUNDED

    def allows(self, q: Points, k: Points) -> Tensor:
        row, column = q.position // self.size, k.position // self.size
        # A side without a limit is not asked: its number is too large for int32 positions.
        allowed = [] if self.left is None else [row - column <= self.left]
        allowed += [] if self.right is None else [column - row <= self.right]
        return reduce(torch.logical_and, allowed or [row - column == row - column])

    def verdict(self, q: Bounds, k: Bounds) -> Tensor:
        left, right = self._limits
        least = q.min // self.size - k.max // self.size
        most = q.max // self.size - k.min // self.size
        return from_tests(
            full=(most <= left) & (least >= -right), some=(least <= left) & (most >= -right)
        )

    def signature(self, q: Bounds, k: Bounds) -> tuple[Tensor, ...]:
        return (q.min // self.size - k.min // self.size, q.min % self.size, k.min % self.size)


# Segments, which patterns may compare, and documents, which are always apart.


@final
@dataclass(frozen=True)
class SameSegment(Pattern):
    """allows(i, j) = (segment(i) = segment(j)); segments come from ``Tokens.segments``.

    A segment is what a pattern may compare besides positions: the patches of an image, a cluster,
    a node of a tree of drafts, a half of a block diffusion. Where tokens name none, all are one.
    Tiles that a segment's edge cuts have no signature: their masks are made when they are used.
    """

    compares_positions = False

    def allows(self, q: Points, k: Points) -> Tensor:
        return q.segment == k.segment

    def verdict(self, q: Bounds, k: Bounds) -> Tensor:
        return _equal_verdict(q.segment_min, q.segment_max, k.segment_min, k.segment_max)


@final
@dataclass(frozen=True)
class DocumentsApart(Pattern):
    """allows(i, j) = (document(i) = document(j)): what ``kept_apart`` adds to every pattern."""

    compares_positions = False

    def allows(self, q: Points, k: Points) -> Tensor:
        return q.document == k.document

    def verdict(self, q: Bounds, k: Bounds) -> Tensor:
        return _equal_verdict(q.document_min, q.document_max, k.document_min, k.document_max)


def _equal_verdict(q_min: Tensor, q_max: Tensor, k_min: Tensor, k_max: Tensor) -> Tensor:
    """Whether all numbers of two ranges are equal, or some may be."""
    overlap = (q_min <= k_max) & (k_min <= q_max)
    return from_tests(full=overlap & (q_min == q_max) & (k_min == k_max), some=overlap)


def kept_apart(pattern: Pattern, q_tokens: Tokens, k_tokens: Tokens) -> Pattern:
    """The pattern under which documents are apart: itself where the tokens name none.

    Everything that is derived from a pattern and tokens asks here. Documents stand outside the
    algebra, as padding does: ~pattern does not make another document visible.

    Raises InvalidArgument if one side names documents or segments and the other does not.
    """
    check_sides(q_tokens, k_tokens)
    apart = DocumentsApart()
    if q_tokens.documents is None or apart in (pattern, *getattr(pattern, "members", ())):
        return pattern
    return apart if pattern == Full() else pattern & apart


def check_sides(q_tokens: Tokens, k_tokens: Tokens) -> None:
    """Raise InvalidArgument if one side names documents or segments and the other does not."""
    for name in ("documents", "segments"):
        of_queries, of_keys = getattr(q_tokens, name), getattr(k_tokens, name)
        if (of_queries is None) != (of_keys is None):
            naming, silent = ("k", "q") if of_queries is None else ("q", "k")
            raise InvalidArgument(
                f"{naming}_tokens name {name} and {silent}_tokens do not: give both or neither"
            )
