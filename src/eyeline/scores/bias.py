"""Bias: a number for each distance is added to the score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from eyeline.scores.base import Curve, Reach, ScoreStep
from eyeline.scores.block import Block, Table
from eyeline.scores.pairs import Pairs


@final
@dataclass(frozen=True)
class Bias(ScoreStep):
    """score[h, i, j] + b[h, d(i, j)], with d the key's position minus the query's.

    curve: distances (D,) to b, (H, D) or (1, D) for all heads alike.
    """

    curve: Curve
    reach: Reach = (None, None)
    additive = True

    def define(self, score: Tensor, pairs: Pairs) -> Tensor:
        return score + pairs.look_up(self.curve)

    def forward(self, score: Tensor, block: Block, table: Table | None) -> Tensor:
        return score.add_(self.added(block, table))

    def added(self, block: Block, table: Table | None) -> Tensor:
        """What is added to the scores of a block: (N or 1, H or 1, R, C)."""
        assert table is not None
        return block.columns(table).spread_line(block.entries(table))

    def backward(self, slope: Tensor, after: Tensor, block: Block, table: Table | None) -> Tensor:
        if table is not None and table.grad is not None:
            block.collect(table, block.columns(table).collapse_line(slope))
        return slope
