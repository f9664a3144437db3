"""Who may look at whom with gaps: strides, dilated windows, summing columns, image neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final

import torch
from torch import Tensor

from eyeline.checks import check_whole
from eyeline.errors import InvalidArgument
from eyeline.patterns.base import Bounds, Pattern, View, from_tests
from eyeline.patterns.local import Window
from eyeline.tokens import NOBODY, Points, Tokens

# Every s-th token, counted from the token that looks.


@final
@dataclass(frozen=True)
class Strided(Pattern):
    """allows(i, j) = ((i - j) mod stride = 0), by position, on both sides.

    Child et al. 2019, "Generating Long Sequences with Sparse Transformers". Tokens that look at
    each other become neighbours when they are ordered by position mod stride.

    Raises InvalidArgument for a stride below 1.
    """

    stride: int

    def __post_init__(self) -> None:
        check_whole("strided stride", self.stride, least=1)

    def allows(self, q: Points, k: Points) -> Tensor:
        return (q.position - k.position) % self.stride == 0

    def verdict(self, q: Bounds, k: Bounds) -> Tensor:
        least, most = q.min - k.max, q.max - k.min
        some = most // self.stride * self.stride >= least
        full = some & (least == most) if self.stride > 1 else some
        if q.residue_min is None or k.residue_min is None or q.modulus != k.modulus:
            return from_tests(full=full, some=some)
        assert q.residue_max is not None and k.residue_max is not None
        single = (q.residue_min == q.residue_max) & (k.residue_min == k.residue_max)
        if q.modulus % self.stride == 0:
            equal = (q.residue_min - k.residue_min) % self.stride == 0
            full, some = full | (single & equal), some & (~single | equal)
        if self.stride % q.modulus == 0:
            some &= (q.residue_min <= k.residue_max) & (k.residue_min <= q.residue_max)
        return from_tests(full=full, some=some)

    def signature(self, q: Bounds, k: Bounds) -> tuple[Tensor, ...]:
        return ((q.min - k.min) % self.stride,)

    def views(self, q: Tokens, k: Tokens) -> tuple[View, ...]:
        return (View(None, None, modulus=self.stride),) if self.stride > 1 else ()


# Neighbours with equal gaps between them.


@final
@dataclass(frozen=True)
class Dilated(Pattern):
    """allows(i, j) = (i - j = step · d for a whole d, -right <= d <= left), by position.

    left, right: how many neighbours on each side, ``step`` apart, the token itself not counted.
    None: no limit. The same as ``Strided(step) & Window(step · left, step · right)``. Beltagy et
    al. 2020 (Longformer), "dilated sliding window".

    Raises InvalidArgument for a step below 1 or a negative width.
    """

    step: int
    left: int | None
    right: int | None

    def __post_init__(self) -> None:
        check_whole("dilated step", self.step, least=1)
        for name, width in (("left", self.left), ("right", self.right)):
            if width is not None:
                check_whole(f"dilated {name}", width, least=0)
                check_whole(f"dilated step · {name}", self.step * width, least=0)

    @cached_property
    def _rule(self) -> Pattern:
        left = None if self.left is None else self.step * self.left
        right = None if self.right is None else self.step * self.right
        return Strided(self.step) & Window(left, right)

    def allows(self, q: Points, k: Points) -> Tensor:
        return self._rule.allows(q, k)

    def verdict(self, q: Bounds, k: Bounds) -> Tensor:
        return self._rule.verdict(q, k)

    def signature(self, q: Bounds, k: Bounds) -> tuple[Tensor, ...] | None:
        return self._rule.signature(q, k)

    def spelled_out(self) -> Pattern:
        return self._rule


# The last tokens of each stretch, which sum it up for everybody.


@final
@dataclass(frozen=True)
class FixedColumns(Pattern):
    """allows(i, j) = (j mod stride >= stride - width), by position: ``width`` columns a stride.

    Child et al. 2019, the summary columns of the "fixed" Sparse Transformer.

    Raises InvalidArgument for a stride below 1 and a width that is not in 1 … stride.
    """

    stride: int
    width: int

    def __post_init__(self) -> None:
        check_whole("fixed_columns stride", self.stride, least=1)
        check_whole("fixed_columns width", self.width, least=1)
        if self.width > self.stride:
            raise InvalidArgument(
                f"fixed_columns width={self.width} is more than its stride={self.stride}"
            )

    def allows(self, q: Points, k: Points) -> Tensor:
        return self._holds(k.position) & (q.position == q.position)

    def verdict(self, q: Bounds, k: Bounds) -> Tensor:
        count = self._before(k.max + 1) - self._before(k.min) + 0 * q.min
        return from_tests(full=count == k.max - k.min + 1, some=count > 0)

    def signature(self, q: Bounds, k: Bounds) -> tuple[Tensor, ...]:
        return (k.min % self.stride + 0 * q.min,)

    def views(self, q: Tokens, k: Tokens) -> tuple[View, ...]:
        chosen = self._holds(k.positions) & (k.positions != NOBODY)
        return (View(None, chosen.nonzero()[:, 0]),)

    def _holds(self, position: Tensor) -> Tensor:
        return position % self.stride + self.width >= self.stride

    def _before(self, position: Tensor) -> Tensor:
        """How many columns stand before a position."""
        inside = (position % self.stride - (self.stride - self.width)).clamp(min=0)
        return position // self.stride * self.width + inside


# Neighbours in an image whose pixels are read row by row.


class _Areas(NamedTuple):
    """Up to three rectangles of pixels that make up each range: (…, 3) each.

    there: whether the rectangle holds a pixel at all.
    """

    top: Tensor
    bottom: Tensor
    left: Tensor
    right: Tensor
    there: Tensor


@final
@dataclass(frozen=True)
class Grid(Pattern):
    """allows(i, j) = (|row(i) - row(j)| <= radius and |column(i) - column(j)| <= radius).

    row = ⌊position / width⌋, column = position mod width: a square of (2·radius + 1)² pixels
    around each pixel, cut off at the edges of the image. Parmar et al. 2018 (Image Transformer),
    "2D local attention", without its blocks; Ramachandran et al. 2019.

    Raises InvalidArgument for a height or width below 1, a negative radius, and, where tokens are
    omitted in the call, unless the sequence has height · width tokens.
    """

    height: int
    width: int
    radius: int

    def __post_init__(self) -> None:
        check_whole("grid height", self.height, least=1)
        check_whole("grid width", self.width, least=1)
        check_whole("grid radius", self.radius, least=0)

    def check_length(self, length: int) -> None:
        if length != self.height * self.width:
            raise InvalidArgument(
                f"a grid of height {self.height} and width {self.width} has "
                f"{self.height * self.width} tokens; the sequence has {length}"
            )

    def allows(self, q: Points, k: Points) -> Tensor:
        rows = q.position // self.width - k.position // self.width
        columns = q.position % self.width - k.position % self.width
        return (rows.abs() <= self.radius) & (columns.abs() <= self.radius)

    def verdict(self, q: Bounds, k: Bounds) -> Tensor:
        a = _Areas(*(x.unsqueeze(-1) for x in self._areas(q)))
        b = _Areas(*(x.unsqueeze(-2) for x in self._areas(k)))
        there = a.there & b.there
        rows = self._near(a.top, a.bottom, b.top, b.bottom)
        columns = self._near(a.left, a.right, b.left, b.right)
        full, some = (x & y for x, y in zip(rows, columns, strict=True))
        some = (some & there).flatten(-2).any(-1)
        return from_tests(full=(full | ~there).flatten(-2).all(-1) & some, some=some)

    def _near(self, a0: Tensor, a1: Tensor, b0: Tensor, b1: Tensor) -> tuple[Tensor, Tensor]:
        """Whether all of two intervals are within the radius, and whether some of them is."""
        least, most = a0 - b1, a1 - b0
        full = (most <= self.radius) & (least >= -self.radius)
        return full, (least <= self.radius) & (most >= -self.radius)

    def _areas(self, x: Bounds) -> _Areas:
        """The range's first row, its last row, and what lies between them."""
        first, last = x.min // self.width, x.max // self.width
        zero, edge = torch.zeros_like(first), torch.full_like(first, self.width - 1)
        begin, end = x.min % self.width, x.max % self.width
        # Most ranges lie in one row or two: what no range has is not looked at.
        rows = int((last - first).clamp(0, 2).max()) + 1 if first.numel() else 1
        top = torch.stack([first, last, first + 1][:rows], -1)
        bottom = torch.stack([first, last, last - 1][:rows], -1)
        left = torch.stack([begin, zero, zero][:rows], -1)
        right = torch.stack([torch.where(first == last, end, edge), end, edge][:rows], -1)
        there = torch.stack([first <= last, first < last, first + 1 < last][:rows], -1)
        if x.modulus == self.width and x.residue_min is not None and x.residue_max is not None:
            left = torch.maximum(left, x.residue_min.unsqueeze(-1))
            right = torch.minimum(right, x.residue_max.unsqueeze(-1))
        return _Areas(top, bottom, left, right, there & (left <= right))

    def signature(self, q: Bounds, k: Bounds) -> tuple[Tensor, ...]:
        rows, q_column, k_column = (
            q.min // self.width - k.min // self.width, q.min % self.width, k.min % self.width,
        )  # fmt: skip
        # Within one row each, only the distance of the columns matters.
        flat = (q.min // self.width == q.max // self.width) & (
            k.min // self.width == k.max // self.width
        )
        return (
            torch.where(flat, q_column - k_column, rows),
            torch.where(flat, -1, q_column),
            torch.where(flat, 0, k_column),
        )
