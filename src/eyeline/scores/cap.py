"""Softcap: scores are kept between two bounds, smoothly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from torch import Tensor

from eyeline.errors import InvalidArgument
from eyeline.scores.base import ScoreMod, ScoreStep
from eyeline.scores.block import Block, Table
from eyeline.scores.pairs import Pairs


@final
@dataclass(frozen=True)
class Softcap(ScoreMod, ScoreStep):
    """limit · tanh(score / limit): scores stay between -limit and limit.

    Its derivative is 1 - (result / limit)². Gemma 2 (Riviere et al. 2024).

    Raises InvalidArgument for a limit that is not a finite number above 0.
    """

    limit: float
    needs_after = True

    def __post_init__(self) -> None:
        if not 0 < self.limit < math.inf:
            raise InvalidArgument(f"Softcap limit={self.limit!r}: a finite number above 0")

    def steps(self) -> tuple[ScoreStep, ...]:
        return (self,)

    def define(self, score: Tensor, pairs: Pairs) -> Tensor:
        return self.limit * (score / self.limit).tanh()

    def forward(self, score: Tensor, block: Block, table: Table | None) -> Tensor:
        return score.div_(self.limit).tanh_().mul_(self.limit)

    def backward(self, slope: Tensor, after: Tensor, block: Block, table: Table | None) -> Tensor:
        return slope * (1 - (after / self.limit).square_())
