"""The first tokens of a sequence, which everybody may look at."""

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
class Sinks(Pattern):
    """allows(i, j) = (j < count), by position: the keys at positions 0 … count - 1.

    Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks": a model that
    reads through a window stays sane while it can also see the first few tokens.

    Raises InvalidArgument for a negative count.
    """

    count: int

    def __post_init__(self) -> None:
        check_whole("sinks count", self.count, least=0)

    def allows(self, q: Points, k: Points) -> Tensor:
        return (k.position < self.count) & (q.position == q.position)

    def verdict(self, q: Bounds, k: Bounds) -> Tensor:
        true = q.min == q.min
        return from_tests(full=(k.max < self.count) & true, some=(k.min < self.count) & true)

    def signature(self, q: Bounds, k: Bounds) -> tuple[Tensor, ...]:
        return (k.min.clamp(max=self.count) + 0 * q.min,)
