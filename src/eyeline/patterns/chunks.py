"""Blocks of equal size along the diagonal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from eyeline.patterns.base import Pattern
from eyeline.patterns.bounds import Bounds
from eyeline.patterns.numbers import check_whole
from eyeline.patterns.verdicts import from_tests
from eyeline.tokens import Points


@final
@dataclass(frozen=True)
class Chunks(Pattern):
    """allows(i, j) = (⌊i / size⌋ = ⌊j / size⌋), by position.

    Raises InvalidArgument for a size below 1.
    """

    size: int

    def __post_init__(self) -> None:
        check_whole("chunks size", self.size, least=1)

    def allows(self, q: Points, k: Points) -> Tensor:
        return q.position // self.size == k.position // self.size

    def verdict(self, q: Bounds, k: Bounds) -> Tensor:
        q_first, q_last = q.min // self.size, q.max // self.size
        k_first, k_last = k.min // self.size, k.max // self.size
        overlap = (q_first <= k_last) & (k_first <= q_last)
        return from_tests(full=overlap & (q_first == q_last) & (k_first == k_last), some=overlap)

    def signature(self, q: Bounds, k: Bounds) -> tuple[Tensor, ...]:
        return (q.min // self.size - k.min // self.size, q.min % self.size, k.min % self.size)
