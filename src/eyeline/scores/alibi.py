"""ALiBi: the further away a key stands, the more its score loses, in each head at its own rate."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from eyeline.encodings.checks import check_size
from eyeline.errors import InvalidArgument
from eyeline.scores.base import ScoreMod, Step
from eyeline.scores.bias import Bias
from eyeline.scores.checks import check_heads


@final
@dataclass(frozen=True)
class ALiBi(ScoreMod):
    """score[h, i, j] - slope[h] · |i - j|, with i and j the positions of query and key.

    The slopes are 2^(-8/H), 2^(-16/H), …, 2^-8 for a number H of heads that is a power of two.
    Else those of the next lower power come first, then every other one of the next higher power,
    from its first on. Other ``slopes`` may be given, one for each head. Nothing is trained.

    The products keep their scale, 1/√E. The paper's models look back only; where a pattern shows
    keys after the query, these lose as much as those before it.
    Press et al. 2022, "Train Short, Test Long".

    Raises InvalidArgument for a head count below 1, and for slopes that are not finite or are not
    as many as heads.
    """

    num_heads: int
    slopes: tuple[float, ...] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_size("ALiBi num_heads", self.num_heads)
        if self.slopes is None:
            return
        given = tuple(float(slope) for slope in self.slopes)
        if len(given) != self.num_heads or not all(map(math.isfinite, given)):
            raise InvalidArgument(
                f"ALiBi slopes={given}: {self.num_heads} finite numbers, one for each head"
            )
        object.__setattr__(self, "slopes", given)

    @property
    def per_head(self) -> tuple[float, ...]:
        """The slope of each head."""
        return self.slopes if self.slopes is not None else published_slopes(self.num_heads)

    def curve(self, distances: Tensor) -> Tensor:
        """-slope · |distance|: (H, D), float64."""
        slopes = torch.tensor(self.per_head, dtype=torch.float64, device=distances.device)
        return -slopes[:, None] * distances.abs()

    def steps(self) -> tuple[Step, ...]:
        return (Bias(self.curve),)

    def check(self, heads: int, width: int, value_width: int | None) -> None:
        check_heads("ALiBi", self.num_heads, heads)


def published_slopes(num_heads: int) -> tuple[float, ...]:
    """The slopes of the paper for so many heads."""
    lower = 1 << (num_heads.bit_length() - 1)
    every_other = _powers(2 * lower)[::2]
    return (*_powers(lower), *every_other[: num_heads - lower])


def _powers(count: int) -> tuple[float, ...]:
    """2^(-8h / count) for h = 1 … count."""
    return tuple(2.0 ** (-8 * h / count) for h in range(1, count + 1))
