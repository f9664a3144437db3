"""Neighbours with equal gaps between them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

from torch import Tensor

from eyeline.patterns.base import Pattern
from eyeline.patterns.bounds import Bounds
from eyeline.patterns.numbers import check_whole
from eyeline.patterns.strided import Strided
from eyeline.patterns.window import Window
from eyeline.tokens import Points


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
