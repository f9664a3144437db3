"""Factor: each weight is multiplied by a number of its distance, after the softmax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from eyeline.scores.base import Curve, Reach, WeightStep
from eyeline.scores.block import Block, Table
from eyeline.scores.pairs import Pairs


@final
@dataclass(frozen=True)
class Factor(WeightStep):
    """weight[h, i, j] · f[h, d(i, j)]: rows no longer sum to 1.

    curve: distances (D,) to f, (H, D) or (1, D) for all heads alike.
    """

    curve: Curve
    reach: Reach = (None, None)

    def define(self, weight: Tensor, pairs: Pairs) -> Tensor:
        return weight * pairs.look_up(self.curve)

    def factor(self, block: Block, table: Table | None, dtype: torch.dtype) -> Tensor:
        assert table is not None
        return block.columns(table).spread_line(block.entries(table))

    def collect(self, slope: Tensor, block: Block, table: Table | None) -> None:
        if table is not None and table.grad is not None:
            block.collect(table, block.columns(table).collapse_line(slope))
