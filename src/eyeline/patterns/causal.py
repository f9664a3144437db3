"""Nobody looks into the future."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from eyeline.patterns.base import Pattern
from eyeline.patterns.bounds import Bounds
from eyeline.patterns.verdicts import from_tests
from eyeline.tokens import Points


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
