"""Every s-th token, counted from the token that looks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from eyeline.patterns.base import Pattern, View
from eyeline.patterns.bounds import Bounds
from eyeline.patterns.numbers import check_whole
from eyeline.patterns.verdicts import from_tests
from eyeline.tokens import Points, Tokens


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
