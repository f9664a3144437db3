"""Steps by distance: added to a score, a factor of a weight, met with the query or the value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from eyeline.scores.base import Block, Curve, OutputStep, Pairs, Reach, ScoreStep, Table, WeightStep

# Products of a block's rows with vectors that stand in a table: (N, H, R, ·) and (M, G, U, E).
#
# M is 1 where all N blocks read the same vectors, G where all heads do; then the rows are one
# matrix.


def times(x: Tensor, table: Tensor) -> Tensor:
    """x (N, H, R, E) with each vector: (N, H, R, U)."""
    return _product(x, table.transpose(-2, -1))


def mix(rows: Tensor, table: Tensor) -> Tensor:
    """The sum of the vectors, each as often as rows (N, H, R, U) say: (N, H, R, E)."""
    return _product(rows, table)


def outer(rows: Tensor, x: Tensor, table: Tensor) -> Tensor:
    """Σ rows ⊗ x over all that share a vector, (M, G, U, E): the gradient of ``mix``."""
    if table.shape[:2] == (1, 1):
        shared: Tensor = rows.flatten(0, 2).transpose(0, 1) @ x.flatten(0, 2)
        return shared[None, None]
    found = rows.transpose(-2, -1) @ x
    if table.shape[0] == 1:
        found = found.sum(0, keepdim=True)
    return found.sum(1, keepdim=True) if table.shape[1] == 1 else found


def _product(x: Tensor, matrix: Tensor) -> Tensor:
    if matrix.shape[:2] == (1, 1):
        return (x.flatten(0, 2) @ matrix[0, 0]).view(*x.shape[:3], matrix.shape[-1])
    return x @ matrix


# Bias: a number for each distance is added to the score.


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


# Factor: each weight is multiplied by a number of its distance, after the softmax.


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


# Product: the query meets a vector of the distance, besides the key.


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


# Values: a vector of the distance is summed up with the value of each key.


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
