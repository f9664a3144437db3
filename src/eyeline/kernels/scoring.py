"""The steps of a request, brought to where tiles need them: tables by distance, block by block."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from eyeline.checks import wide_dtype, widened
from eyeline.kernels.pieces import Piece, pick
from eyeline.kernels.product import Pairing, Steps
from eyeline.kernels.request import Request
from eyeline.scores import Bias, Block, Marks
from eyeline.scores import Step as Step
from eyeline.scores.columns import ColumnsOf, tabulate
from eyeline.tokens import NOBODY, Tokens
from eyeline.tokens.ordering import Ordering

# A table may have this many entries for each slot of the queries and keys, and so many besides.
_ENTRIES, _FREE = 8, 1 << 16


def refusal(request: Request) -> str | None:
    """Why the steps cannot be done block by block, or None."""
    if request.called is not None:
        return (
            "a callable score_mod shows it no derivative: give a ScoreMod, or name the backend "
            '"reference" or "flex"'
        )
    slots = request.query.shape[2] + request.key.shape[2]
    for step in request.steps:
        if step.curve is not None:
            first, last = _range(request, step)
            if last - first >= _ENTRIES * slots + _FREE:
                return (
                    f"positions lie up to {last - first:,} apart, and a table of so many distances "
                    f"for {slots:,} tokens would not be linear in their number"
                )
    return None


def tables(request: Request) -> tuple[Tensor | None, ...]:
    """For each step what its curve gives for all distances of the request; differentiable."""
    return tuple(None if step.curve is None else _table(request, step) for step in request.steps)


def _table(request: Request, step: Step) -> Tensor:
    assert step.curve is not None
    query, (first, last) = request.query, _range(request, step)
    distances = torch.arange(first, last + 1, device=query.device)
    wide = wide_dtype(query)
    vector = step.vector(query.shape[3], request.value.shape[3])
    return tabulate(step.curve, distances, query.shape[1], wide, vector).contiguous()


def firsts(request: Request) -> tuple[int, ...]:
    """For each step the distance of its table's first entry."""
    return tuple(0 if s.curve is None else _range(request, s)[0] for s in request.steps)


def _range(request: Request, step: Step) -> tuple[int, int]:
    """The least and greatest distance that the step tells apart here."""
    least, most = span(request.q_tokens, request.k_tokens)
    low, high = step.reach
    if low is not None:
        least, most = max(least, low), max(most, low)
    if high is not None:
        least, most = min(least, high), min(most, high)
    return least, most


def span(q_tokens: Tokens, k_tokens: Tokens) -> tuple[int, int]:
    """The least and greatest distance of a key from a query."""
    (q_least, q_most), (k_least, k_most) = (_reached(t.host) for t in (q_tokens, k_tokens))
    return k_least - q_most, max(k_most - q_least, k_least - q_most)


def _reached(tokens: Tokens) -> tuple[int, int]:
    real = tokens.positions[tokens.positions != NOBODY]
    if not real.numel():
        return 0, 0
    least, most = real.aminmax()
    return int(least), int(most)


@final
@dataclass(frozen=True, eq=False)
class Scoring:
    """What is done to the scores of one batch row and some heads.

    steps and their tables, in order; q (1, L) and k (1, S): who stands in which slot; row and
    heads: the number of the batch row and of the first head.
    """

    steps: Pairing
    q: Marks
    k: Marks
    row: int
    heads: int

    @staticmethod
    def of(steps: Pairing, q: Tokens, k: Tokens, row: int) -> Scoring:
        """For all heads of a batch row."""
        return Scoring(steps, _marks(q), _marks(k), row, 0)

    def of_heads(self, heads: slice) -> Scoring:
        """For some heads."""
        steps = tuple((s, None if t is None else t.of_heads(heads)) for s, t in self.steps)
        return replace(self, steps=steps, heads=self.heads + heads.start)

    def in_order(self, q_order: Ordering | None, k_order: Ordering | None) -> Scoring:
        """For queries and keys in other orders."""
        return replace(self, q=_reordered(self.q, q_order), k=_reordered(self.k, k_order))

    @property
    def is_bias(self) -> bool:
        """Whether it only adds to each score a number of its distance."""
        return all(isinstance(step, Bias) for step, _ in self.steps)

    @property
    def has_tables(self) -> bool:
        """Whether a step reads a table."""
        return any(table is not None for _, table in self.steps)

    @property
    def is_trained(self) -> bool:
        """Whether a table asks for its gradient."""
        return any(t is not None and t.grad is not None for _, t in self.steps)

    def at(self, piece: Piece, query: Tensor, scale: float) -> Steps:
        """The steps for the pairs of a piece, whose queries are given: (N, H, R, E)."""
        q, k = (
            Marks(*(cut(x)[:, 0] for x in marks))
            for marks, cut in ((self.q, piece.queries), (self.k, piece.keys))
        )
        wide = widened(query)
        return Steps(self.steps, Block(wide, scale, q, k, self.row, self.heads, self._columns))

    @cached_property
    def _columns(self) -> ColumnsOf:
        return ColumnsOf(self.q.position, self.k.position)


def _marks(tokens: Tokens) -> Marks:
    slots = torch.arange(tokens.length, device=tokens.positions.device)
    position = _continued(tokens.positions, tokens.positions != NOBODY)
    return Marks(position[None], slots[None])


def _reordered(marks: Marks, order: Ordering | None) -> Marks:
    if order is None:
        return marks
    position, slot = (pick(x, order) for x in marks)
    real = torch.ones_like(position[0], dtype=torch.bool)
    real[order.pads.to(real.device)] = False
    return Marks(_continued(position[0], real)[None], slot)


def _continued(position: Tensor, real: Tensor) -> Tensor:
    """position (L,), and where nobody real stands, what continues the positions beside it.

    Who stands there looks at nobody, but where positions go up evenly a table is read faster.
    """
    if bool(real.all()) or not bool(real.any()):
        return position
    places, end = torch.arange(len(position), device=position.device), len(position)
    last = torch.where(real, places, -1).cummax(0).values
    after = torch.where(real, places, end).flip(0).cummin(0).values.flip(0)
    beside = torch.where(last >= 0, last, after)
    further = (beside + torch.where(last >= 0, -1, 1)).clamp(0, end - 1)
    step = (position[beside] - position[further]) * torch.where(last >= 0, 1, -1)
    step = torch.where(real[further] & (further != beside), step, 1)
    return position[beside] + (places - beside) * step
