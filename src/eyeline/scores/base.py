"""What is done to the score of a pair, or to its weight: the contract.

A *score modifier* is what users name: ``ALiBi(8)``, ``Softcap(30.0)``, a trained ``T5Bias``. It
consists of *steps*. A step is one change of the scores (Bias, Product, Softcap), of the weights
(Factor, Dropout) or of the output (Values). Each says the same thing twice: ``define`` on all
pairs, in operations that torch can differentiate in every way, for the reference; ``forward`` and
``backward`` on one block of pairs, with its own derivative, for kernels whose memory is linear.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from eyeline.scores.block import Block, Table
from eyeline.scores.pairs import Pairs

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
