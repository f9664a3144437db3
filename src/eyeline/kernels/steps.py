"""The steps of a request for one block of pairs: what is done forward, and undone backward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar, final

import torch
from torch import Tensor

from eyeline.scores import Bias, Block, OutputStep, ScoreStep, Step, Table, WeightStep

Pairing = tuple[tuple[Step, Table | None], ...]
"""Steps in order, each with its table."""

_Kind = TypeVar("_Kind", bound=Step)


@final
@dataclass(frozen=True, eq=False)
class Steps:
    """Tensors of pairs are (N, H, R, C); those of the output (N, H, R, Ev)."""

    pairing: Pairing
    block: Block

    def change(self, score: Tensor) -> tuple[Tensor, list[Tensor | None]]:
        """The changed scores, and for each score step its result if its derivative needs it."""
        kept: list[Tensor | None] = []
        for step, table in self._each(ScoreStep):  # type: ignore[type-abstract]
            score = step.forward(score, self.block, table)
            # Later steps overwrite the scores.
            kept.append(score.clone() if step.needs_after else None)
        return score, kept

    def slope_before(self, slope: Tensor, kept: list[Tensor | None]) -> Tensor:
        """The slope of changed scores to the slope of those given; collects gradients."""
        backwards = list(zip(self._each(ScoreStep), kept, strict=True))[::-1]  # type: ignore[type-abstract]
        for (step, table), after in backwards:
            slope = step.backward(slope, after if after is not None else slope, self.block, table)
        return slope

    def bias(self) -> Tensor:
        """What steps that only add numbers add: (N or 1, H or 1, R, C)."""
        added = [step.added(self.block, table) for step, table in self._each(Bias)]
        return added[0] if len(added) == 1 else torch.stack(torch.broadcast_tensors(*added)).sum(0)

    def weigh(self, weight: Tensor) -> Tensor:
        """What the values are multiplied by; the weight itself is left as it is."""
        for step, table in self._each(WeightStep):  # type: ignore[type-abstract]
            weight = weight * step.factor(self.block, table, weight.dtype)
        return weight

    def slope_of_weight(self, slope: Tensor, weight: Tensor) -> Tensor:
        """The slope of ``weigh(weight)``, to that of the weight; collects gradients."""
        each = list(self._each(WeightStep))  # type: ignore[type-abstract]
        factors = [step.factor(self.block, table, weight.dtype) for step, table in each]
        for index, (step, table) in enumerate(each):
            if table is not None:
                others = [slope, weight, *factors[:index], *factors[index + 1 :]]
                step.collect(_product(others), self.block, table)
        return _product([slope, *factors])

    def extra(self, out: Tensor, weight: Tensor) -> Tensor:
        """The output with what its steps add."""
        for step, table in self._each(OutputStep):  # type: ignore[type-abstract]
            out = out + step.forward(weight, self.block, table)
        return out

    def slope_of_extra(self, slope: Tensor, above: Tensor, weight: Tensor) -> Tensor:
        """The slope of the weights with what the output's steps add to it; collects gradients."""
        for step, table in self._each(OutputStep):  # type: ignore[type-abstract]
            slope = step.backward(slope, above, weight, self.block, table)
        return slope

    def _each(self, kind: type[_Kind]) -> Iterator[tuple[_Kind, Table | None]]:
        for step, table in self.pairing:
            if isinstance(step, kind):
                yield step, table


def _product(factors: list[Tensor]) -> Tensor:
    first, *others = factors
    for other in others:
        first = first * other
    return first
