"""Blocks of equal size along the diagonal, and their neighbours."""

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
