"""Product: the query meets a vector of the distance, besides the key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from eyeline.scores.base import Curve, Reach, ScoreStep
from eyeline.scores.block import Block, Table
from eyeline.scores.pairs import Pairs
from eyeline.scores.products import mix, outer, times


@final
@dataclass(frozen=True)
class Product(ScoreStep):
    """score[h, i, j] + scale · query[h, i] · r[h, d(i, j)].

    curve: distances (D,) to r, (H, D, E) or (1, D, E) for all heads alike.
    """

    curve: Curve
    reach: Reach = (None, None)
    additive = True

    def vector(self, width: int, value_width: int) -> tuple[int, ...]:
        return (width,)

    def define(self, score: Tensor, pairs: Pairs) -> Tensor:
        table, which = pairs.table(self.curve, pairs.query.shape[-1])
        rows = pairs.query.to(table.dtype) @ table.transpose(-2, -1)
        return score + pairs.scale * rows.gather(-1, which.expand_as(score))

    def forward(self, score: Tensor, block: Block, table: Table | None) -> Tensor:
        assert table is not None
        rows = times(block.query, block.entries(table))
        return block.columns(table).add(score, rows, alpha=block.scale)

    def backward(self, slope: Tensor, after: Tensor, block: Block, table: Table | None) -> Tensor:
        assert table is not None
        rows = block.columns(table).collapse(slope).mul_(block.scale)
        entries = block.entries(table)
        block.grad_query.append(mix(rows, entries))
        if table.grad is not None:
            block.collect(table, outer(rows, block.query, entries))
        return slope
