"""The last tokens of each stretch, which sum it up for everybody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from eyeline.errors import InvalidArgument
from eyeline.patterns.base import Pattern, View
from eyeline.patterns.bounds import Bounds
from eyeline.patterns.numbers import check_whole
from eyeline.patterns.verdicts import from_tests
from eyeline.tokens import NOBODY, Points, Tokens


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
