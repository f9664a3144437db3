"""The blocks of pairs of a request, one after the other, with the slots that stand in them.

For what keeps something of each pair, or adds something up for each key. Output and log-sum-exp
alone come from ``execute``, which need not know slots.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final

import torch
from torch import Tensor

from eyeline.kernels import plain
from eyeline.kernels.execute import Inputs
from eyeline.kernels.pieces import Footprint, Piece, dense_rows, pieces
from eyeline.kernels.request import Request
from eyeline.kernels.sheets import Sheet, sheets
from eyeline.kernels.steps import Pairing, Steps
from eyeline.planning import Plan, Reordered
from eyeline.planning.orders import Order

# Working memory of one block, in bytes.
_BUDGET = 4 << 20


class Slots(NamedTuple):
    """The slot at each place of a plan: queries (1, L) and keys (1, S); -1 where nobody is."""

    q: Tensor
    k: Tensor


@final
@dataclass(frozen=True, eq=False)
class Spot:
    """N blocks of R queries and C keys, of one batch row and some heads.

    q (N, R) and k (N, C): their slots. inputs: queries and keys as the piece reads them.
    """

    sheet: Sheet
    inputs: Inputs
    piece: Piece
    q: Tensor
    k: Tensor

    @cached_property
    def allowed(self) -> tuple[Tensor, Tensor]:
        """The rows and the columns of a block's P pairs that look: (P,) each."""
        if self.piece.mask is not None:
            rows, columns = self.piece.mask.to(self.inputs.query.device).nonzero().unbind(1)
            return rows, columns
        shape, device = (self.q.shape[1], self.k.shape[1]), self.inputs.query.device
        rows, columns = torch.meshgrid(
            *(torch.arange(size, device=device) for size in shape), indexing="ij"
        )
        return rows.flatten(), columns.flatten()

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(N, H, R, C)."""
        return (self.q.shape[0], self.inputs.query.shape[0], self.q.shape[1], self.k.shape[1])

    def blocks(self) -> tuple[Tensor, Tensor]:
        """The queries (N, H, R, E) and keys (N, Hk, C, E)."""
        return self.piece.queries(self.inputs.query), self.piece.keys(self.inputs.key)

    def steps(self, scale: float) -> Steps | None:
        """What is done to the scores of the blocks."""
        scoring = self.inputs.scoring
        return None if scoring is None else scoring.at(self.piece, self.blocks()[0], scale)

    def scores(self, scale: float, steps: Steps | None) -> tuple[Tensor, list[Tensor | None]]:
        """The changed scores of all pairs, (N, H, R, C), and what the steps keep of them."""
        return plain.scores(*self.blocks(), None, scale, steps)

    def pick(self, pairs: Tensor) -> Tensor:
        """(N, H, R, C) to what stands at the pairs that look, (N, H, P)."""
        rows, columns = self.allowed
        return pairs.flatten(2)[:, :, rows * self.shape[3] + columns]

    def spread(self, values: Tensor) -> Tensor:
        """(N, H, P) to (N, H, R, C), 0 at all other pairs."""
        rows, columns = self.allowed
        pairs = values.new_zeros(self.shape)
        pairs.flatten(2)[:, :, rows * self.shape[3] + columns] = values
        return pairs


def spots(request: Request, pairing: Pairing) -> Iterator[Spot]:
    """Every allowed pair of the request, once."""
    query, key = dense_rows(request.query), dense_rows(request.key)
    slots = Slots(*(torch.arange(x.shape[2], device=x.device)[None] for x in (query, key)))
    for sheet in sheets(request):
        yield from _of_plan(sheet, sheet.plan, sheet.inputs(query, key, key, pairing), slots)


def _of_plan(sheet: Sheet, plan: Plan, inputs: Inputs, slots: Slots) -> Iterator[Spot]:
    heads, _, width = inputs.query.shape
    size = 4 * heads * max(inputs.query.element_size(), 4)
    footprint = Footprint(width * size, 0, 2 * size)
    for part in plan.parts:
        if isinstance(part, Reordered):
            some = inputs.in_order(part.q_order, part.k_order)
            inner = Slots(_at(slots.q, part.q_order), _at(slots.k, part.k_order))
            yield from _of_plan(sheet, part.plan, some, inner)
        else:
            for piece in pieces(plan, part, footprint, _BUDGET):
                q, k = piece.queries(slots.q)[:, 0], piece.keys(slots.k)[:, 0]
                yield Spot(sheet, inputs, piece, q, k)


def _at(slots: Tensor, order: Order | None) -> Tensor:
    """The slot at each place of an order; its pads read some slot, where no pair looks."""
    return slots if order is None else slots[:, order.slots.clamp(min=0).to(slots.device)]
