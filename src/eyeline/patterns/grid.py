"""Neighbours in an image whose pixels are read row by row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument
from eyeline.patterns.base import Pattern
from eyeline.patterns.bounds import Bounds
from eyeline.patterns.numbers import check_whole
from eyeline.patterns.verdicts import from_tests
from eyeline.tokens import Points


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
