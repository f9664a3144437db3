"""What is done to the score of a pair, or to its weight: the contract, and what steps see."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, NamedTuple, final

import torch
from torch import Tensor

from eyeline.checks import wide_dtype
from eyeline.scores.columns import Columns, ColumnsOf, tabulate
from eyeline.tokens import Tokens

# All pairs of a call, as the definitions of steps see them.


@final
@dataclass(frozen=True, eq=False)
class Pairs:
    """Every pair of a query and a key: query (B, H, L, E), and who stands in which slot."""

    query: Tensor
    scale: float
    q_tokens: Tokens
    k_tokens: Tokens

    @cached_property
    def _distances(self) -> tuple[Tensor, Tensor]:
        """The distances that occur, (U,), and for each pair which it is, (B or 1, L, S)."""
        q, k = self.q_tokens.positions, self.k_tokens.positions
        distance = (k.unsqueeze(-2) - q.unsqueeze(-1)).to(self.query.device)
        found, which = distance.unique(return_inverse=True)
        return found, which if which.dim() == 3 else which[None]

    def look_up(self, curve: Callable[[Tensor], Tensor]) -> Tensor:
        """A curve's table (G, U) read by the pairs: (B or 1, G, L, S)."""
        distances, which = self._distances
        return self._table(curve, distances, ())[:, which].transpose(0, 1)

    def table(
        self, curve: Callable[[Tensor], Tensor], width: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """A curve's table of vectors (G, U, E), and the entry of each pair, (B or 1, 1, L, S)."""
        distances, which = self._distances
        vector = None if width is None else (width,)
        return self._table(curve, distances, vector), which[:, None]

    def _table(
        self, curve: Callable[[Tensor], Tensor], distances: Tensor, vector: tuple[int, ...] | None
    ) -> Tensor:
        wide = wide_dtype(self.query)
        return tabulate(curve, distances, self.query.shape[1], wide, vector)


# One block of pairs, as kernels show it to the steps; and the tables that the steps read there.


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


# What is done to the score of a pair, or to its weight: the contract.
#
# A *score modifier* is what users name: ``ALiBi(8)``, ``Softcap(30.0)``, a trained ``T5Bias``. It
# consists of *steps*. A step is one change of the scores (Bias, Product, Softcap), of the weights
# (Factor, Dropout) or of the output (Values). Each says the same thing twice: ``define`` on all
# pairs, in operations that torch can differentiate in every way, for the reference; ``forward`` and
# ``backward`` on one block of pairs, with its own derivative, for kernels whose memory is linear.

Curve = Callable[[Tensor], Tensor]
"""Distances, int64 (D,), to what stands in a table for each of them: (G, D) or (G, D, E).

G is 1, for all heads alike, or the number of heads. The distance of a pair is the key's position
minus the query's: in causal attention 0, -1, -2, …
"""

Reach = tuple[int | None, int | None]
"""(least, greatest) distance that a curve tells apart; those beyond give the same. None: no end."""


class ScoreMod(ABC):
    """A change of scores or weights that ``attention(…, score_mod=…)`` can be given."""

    @abstractmethod
    def steps(self) -> tuple[Step, ...]:
        """What it consists of, in the order in which it is done."""

    def shifted(self, query: Tensor) -> Tensor:
        """The queries (B, H, L, E) that take the place of the given ones."""
        return query

    def check(self, heads: int, width: int, value_width: int | None) -> None:  # noqa: B027
        """Raise InvalidArgument if it was not made for so many query heads of these widths.

        value_width is None where no values are summed up, but weights are asked for.
        """


class Step(ABC):  # noqa: B024  (its kinds have the methods)
    """One change. ``curve`` is None where it does not depend on the distance.

    The ``table`` that the methods for blocks are given holds what the curve gives for the heads
    of the block; they add to ``table.grad``, unless it is None.
    """

    curve: Curve | None = None
    reach: Reach = (None, None)

    def vector(self, width: int, value_width: int) -> tuple[int, ...]:
        """What a table has for each head and distance: a number, (), or a vector, (E,)."""
        return ()


class ScoreStep(Step):
    """A change of the scores, before the softmax.

    additive: whether it adds to each score a number that depends on no score. needs_after:
    whether its derivative is computed from its result.
    """

    additive: ClassVar[bool] = False
    needs_after: ClassVar[bool] = False

    @abstractmethod
    def define(self, score: Tensor, pairs: Pairs) -> Tensor:
        """score (B, H, L, S) to the changed ones."""

    @abstractmethod
    def forward(self, score: Tensor, block: Block, table: Table | None) -> Tensor:
        """score (N, H, R, C), which may be overwritten, to the changed ones."""

    @abstractmethod
    def backward(self, slope: Tensor, after: Tensor, block: Block, table: Table | None) -> Tensor:
        """The slope of what ``forward`` gave to the slope of what it was given.

        slope may be overwritten. after: what ``forward`` gave, where ``needs_after``.
        """


class WeightStep(Step):
    """A factor of each weight, after the softmax."""

    @abstractmethod
    def define(self, weight: Tensor, pairs: Pairs) -> Tensor:
        """weight (B, H, L, S) to the changed ones."""

    @abstractmethod
    def factor(self, block: Block, table: Table | None, dtype: torch.dtype) -> Tensor:
        """What each weight is multiplied by: (N or 1, H or 1, R, C)."""

    def collect(self, slope: Tensor, block: Block, table: Table | None) -> None:
        """Add the gradient of the table. slope (N, H, R, C): the gradient of the factors."""


class OutputStep(Step):
    """Something that the weighted sum takes up besides the values."""

    @abstractmethod
    def define(self, weight: Tensor, pairs: Pairs) -> Tensor:
        """weight (B, H, L, S) to what is added to the output, (B, H, L, Ev)."""

    @abstractmethod
    def forward(self, weight: Tensor, block: Block, table: Table | None) -> Tensor:
        """weight (N, H, R, C) to what is added to the output, (N, H, R, Ev)."""

    @abstractmethod
    def backward(
        self, slope: Tensor, above: Tensor, weight: Tensor, block: Block, table: Table | None
    ) -> Tensor:
        """The slope of the weights, (N, H, R, C), with what this adds to it; may be in place.

        above: the gradient of the output, (N, H, R, Ev).
        """
