"""Neighbours: a band around the diagonal."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import final

import torch
from torch import Tensor

from eyeline.patterns.base import Pattern
from eyeline.patterns.bounds import UNBOUNDED, Bounds
from eyeline.patterns.numbers import check_whole
from eyeline.patterns.verdicts import from_tests
from eyeline.tokens import Points


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
