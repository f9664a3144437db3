"""One block of pairs, as kernels show it to the steps; and the tables that the steps read there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, final

from torch import Tensor

from eyeline.scores.columns import Columns, ColumnsOf


class Table(NamedTuple):
    """What stands for the distances first, first + 1, …: values (G, D) or (G, D, E).

    grad: of the same shape, to be added to; None where nobody asks for it.
    """

    values: Tensor
    first: int
    grad: Tensor | None = None

    def of_heads(self, heads: slice) -> Table:
        """The table of some heads."""
        if self.values.shape[0] == 1:
            return self
        grad = None if self.grad is None else self.grad[heads]
        return Table(self.values[heads], self.first, grad)


class Marks(NamedTuple):
    """Who stands in some slots: their positions, and their numbers in the sequence, (N, R)."""

    position: Tensor
    slot: Tensor


@final
@dataclass(frozen=True, eq=False)
class Block:
    """N blocks of R queries and C keys. query: (N, H, R, E), float32 or float64.

    heads: the number of the first of the H query heads; row: the batch row. grad_query: what
    steps add to the gradient of the queries. known: the columns of blocks like this one.
    """

    query: Tensor
    scale: float
    q: Marks
    k: Marks
    row: int
    heads: int
    known: ColumnsOf
    grad_query: list[Tensor] = field(default_factory=list)

    def columns(self, table: Table) -> Columns:
        """How its pairs read the table."""
        return self.known(self.q.position, self.k.position, table.first, table.values.shape[1])

    def entries(self, table: Table) -> Tensor:
        """What stands in the block's columns: (M, G, U) or (M, G, U, E)."""
        index = self.columns(table).index.to(table.values.device)
        return table.values[:, index].transpose(0, 1)

    def collect(self, table: Table, found: Tensor) -> None:
        """Add the gradient of ``entries``, (M, H or G, U, …), to that of the table."""
        assert table.grad is not None
        index = self.columns(table).index.to(found.device).flatten()
        if table.grad.shape[0] == 1:
            found = found.sum(1, keepdim=True)
        found = found.transpose(0, 1).flatten(1, 2)
        table.grad.index_add_(1, index, found.to(table.grad.dtype))
