"""Values: a vector of the distance is summed up with the value of each key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from eyeline.scores.base import Curve, OutputStep, Reach
from eyeline.scores.block import Block, Table
from eyeline.scores.pairs import Pairs
from eyeline.scores.products import mix, outer, times


@final
@dataclass(frozen=True)
class Values(OutputStep):
    """out[h, i] + Σ_j weight[h, i, j] · a[h, d(i, j)].

    curve: distances (D,) to a, (H, D, Ev) or (1, D, Ev) for all heads alike.
    """

    curve: Curve
    reach: Reach = (None, None)

    def vector(self, width: int, value_width: int) -> tuple[int, ...]:
        return (value_width,)

    def define(self, weight: Tensor, pairs: Pairs) -> Tensor:
        table, which = pairs.table(self.curve)
        rows = weight.new_zeros(*weight.shape[:-1], table.shape[1])
        return rows.scatter_add(-1, which.expand_as(weight), weight) @ table

    def forward(self, weight: Tensor, block: Block, table: Table | None) -> Tensor:
        assert table is not None
        return mix(block.columns(table).collapse(weight), block.entries(table))

    def backward(
        self, slope: Tensor, above: Tensor, weight: Tensor, block: Block, table: Table | None
    ) -> Tensor:
        assert table is not None
        entries, columns = block.entries(table), block.columns(table)
        if table.grad is not None:
            block.collect(table, outer(columns.collapse(weight), above, entries))
        return columns.add(slope, times(above, entries))
