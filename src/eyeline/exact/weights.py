"""The weights of the pairs that look, without a matrix of all pairs: one by one, or summed up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from eyeline.budgets import budgets
from eyeline.checks import wide_dtype
from eyeline.errors import NotSupported
from eyeline.exact.call import PatternLike, ScoreModLike, make_request
from eyeline.kernels import product, scoring, tiles
from eyeline.kernels.autograd import only_once
from eyeline.kernels.execute import Inputs
from eyeline.kernels.pieces import Footprint, Piece, dense_rows, pieces
from eyeline.kernels.product import Pairing, Steps
from eyeline.kernels.request import Request
from eyeline.kernels.tiles import Sheet, sheets
from eyeline.patterns import Full
from eyeline.planning import Plan, Reordered
from eyeline.tokens import Tokens
from eyeline.tokens.ordering import Ordering

# The blocks of pairs of a request, one after the other, with the slots that stand in them.
#
# For what keeps something of each pair, or adds something up for each key. Output and log-sum-exp
# alone come from ``execute``, which need not know slots.


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
        return product.scores(*self.blocks(), None, scale, steps)

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
            for piece in pieces(plan, part, footprint, budgets.piece):
                q, k = piece.queries(slots.q)[:, 0], piece.keys(slots.k)[:, 0]
                yield Spot(sheet, inputs, piece, q, k)


def _at(slots: Tensor, order: Ordering | None) -> Tensor:
    """The slot at each place of an order; its pads read some slot, where no pair looks."""
    return slots if order is None else slots[:, order.slots[0].clamp(min=0).to(slots.device)]


def sparse_attention_weights(
    query: Tensor,
    key: Tensor,
    pattern: PatternLike = Full(),
    *,
    score_mod: ScoreModLike = None,
    scale: float | None = None,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
) -> Tensor:
    """weight[i, j] = exp(scale · query[i]·key[j] - lse[i]) of the pairs that look, and no others.

    query (B, H, L, E), key (B, Hk, S, E). Returns a coalesced sparse COO tensor (B, H, L, S):
    ``indices()`` (4, pairs), ordered by row, head, query and key, and ``values()`` (pairs,) in
    the dtype of the query. Each row sums to 1; one that may look at nobody has no pairs. What is
    looked at with weight 0 is there; what may not be looked at is not.

    Memory is proportional to the pairs: 4 int64 and one value for each. The values have first
    derivatives; second ones and forward mode are ``attention_weights``'.

    Raises NotSupported for a callable score_mod, and for positions too far apart for its tables.
    """
    request = _request(query, key, pattern, score_mod, scale, q_tokens, k_tokens)
    with torch.autocast(query.device.type, enabled=False):
        place, values = _in_order(*_scores(request), request)
    shape = (*request.query.shape[:3], request.key.shape[2])
    return torch.sparse_coo_tensor(
        torch.stack(torch.unravel_index(place, shape)) if len(place) else place.new_empty(4, 0),
        values.to(request.query.dtype),
        shape,
        is_coalesced=True,
        check_invariants=False,
    )


def column_sums(
    query: Tensor,
    key: Tensor,
    pattern: PatternLike = Full(),
    *,
    score_mod: ScoreModLike = None,
    scale: float | None = None,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
) -> Tensor:
    """sum[j] = Σ_i weight[i, j]: how much each key is looked at in all, (B, H, S).

    query (B, H, L, E), key (B, Hk, S, E). float32, or float64 for float64 inputs. Memory is
    linear in length, whatever the pattern. A measurement, without a gradient: for pictures and
    for choosing what a cache may forget.

    Raises NotSupported for a callable score_mod, and for positions too far apart for its tables.
    """
    request = _request(query, key, pattern, score_mod, scale, q_tokens, k_tokens)
    with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
        # Sums of half types would drift: all is computed in float32.
        wide = wide_dtype(request.query)
        query, key = request.query.to(wide), request.key.to(wide)
        request = replace(request, query=query, key=key, value=key)
        pairing = _pairing(request, scoring.tables(request))
        # What is done to weights and output does not change the log-sum-exp.
        _, lse = tiles.run(replace(request, steps=request.score_steps))
        sums = lse.new_zeros(*lse.shape[:2], request.key.shape[2])
        for spot in spots(request, pairing):
            _add_columns(sums, lse, spot, request.scale)
        return sums


def _request(
    query: Tensor,
    key: Tensor,
    pattern: PatternLike,
    score_mod: ScoreModLike,
    scale: float | None,
    q_tokens: Tokens | None,
    k_tokens: Tokens | None,
) -> Request:
    request = make_request(
        query, key, key, pattern, sums_values=False,
        score_mod=score_mod, scale=scale, q_tokens=q_tokens, k_tokens=k_tokens,
    )  # fmt: skip
    reason = scoring.refusal(request)
    if reason is not None:
        raise NotSupported(
            f"weights without a matrix of all pairs, for {request.sizes}: {reason}. "
            "For short inputs attention_weights(…) gives the whole matrix"
        )
    return request


def _add_columns(sums: Tensor, lse: Tensor, spot: Spot, scale: float) -> None:
    steps = spot.steps(scale)
    score, _ = spot.scores(scale, steps)
    of = lse[spot.sheet.row, spot.sheet.heads]
    weight = (score - of[:, spot.q].transpose(0, 1).unsqueeze(-1)).exp_()
    if steps is not None:
        weight = steps.weigh(weight)
    if spot.piece.mask is not None:
        weight = weight.masked_fill_(~spot.piece.mask.to(weight.device), 0.0)
    column = weight.sum(2).transpose(0, 1).flatten(1)
    sums[spot.sheet.row, spot.sheet.heads].index_add_(1, spot.k.flatten(), column)


def _in_order(
    place: Tensor, score: Tensor, factor: Tensor | None, request: Request
) -> tuple[Tensor, Tensor]:
    """The softmax of each row over its pairs, and the pairs brought into the matrix's order."""
    order = place.argsort()
    place, score = place[order], score[order]
    row = place // max(request.key.shape[2], 1)
    rows = request.query.shape[:3].numel()
    top = score.new_full((rows,), -torch.inf)
    top = top.scatter_reduce(0, row, score.detach(), "amax")
    part = (score - top[row]).exp()
    weight = part / part.new_zeros(rows).index_add(0, row, part)[row]
    return place, weight if factor is None else weight * factor[order]


def _scores(request: Request) -> tuple[Tensor, Tensor, Tensor | None]:
    """Of each pair that looks its place in the matrix (B, H, L, S), its score, and its factor."""
    found = _Scores.apply(request.query, request.key, request, *scoring.tables(request))  # type: ignore[no-untyped-call]
    place, score, factor = found
    return place, score, factor


class _Scores(torch.autograd.Function):
    """Block by block, forward and backward; blocks come in the same order in both."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, request: Request, *tables: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        wide = wide_dtype(query)
        places = [torch.empty(0, dtype=torch.int64, device=query.device)]
        scores = [query.new_empty(0, dtype=wide)]
        factors: list[Tensor] = []
        for spot in spots(request, _pairing(request, tables)):
            steps = spot.steps(request.scale)
            score, _ = spot.scores(request.scale, steps)
            places.append(_places(spot, request).flatten())
            scores.append(spot.pick(score).flatten())
            if steps is not None and request.weight_steps:
                factors.append(spot.pick(steps.weigh(torch.ones_like(score))).flatten())
        ctx.save_for_backward(query, key, *tables)
        ctx.request = request
        place = torch.cat(places)
        ctx.mark_non_differentiable(place)
        ctx.set_materialize_grads(False)
        return place, torch.cat(scores), torch.cat(factors) if factors else None

    @staticmethod
    def backward(
        ctx: Any, _: None, slope: Tensor | None, factor_slope: Tensor | None
    ) -> tuple[Any, ...]:
        with torch.no_grad():
            found = _gradients(ctx, slope, factor_slope)
        inputs = (*ctx.saved_tensors, slope, factor_slope)
        return only_once("sparse_attention_weights", found, *inputs)


def _gradients(ctx: Any, slope: Tensor | None, factor_slope: Tensor | None) -> tuple[Any, ...]:
    query, key, *tables = ctx.saved_tensors
    wide = wide_dtype(query)
    grads = tuple(torch.zeros_like(x, dtype=wide) for x in (query, key))
    slopes = [None if table is None else torch.zeros_like(table) for table in tables]
    request, done = replace(ctx.request, query=query, key=key), 0
    for spot in spots(request, _pairing(request, tables, slopes)):
        pairs = spot.shape[0] * spot.shape[1] * len(spot.allowed[0])
        some = slice(done, done + pairs)
        own = (None if x is None else x[some] for x in (slope, factor_slope))
        _back(spot, request.scale, grads, *own)
        done += pairs
    return (*(g.to(query.dtype) for g in grads), None, *slopes)


def _back(
    spot: Spot, scale: float, grads: tuple[Tensor, ...], slope: Tensor | None, factor: Tensor | None
) -> None:
    """Add the gradients of a spot's pairs to grads, and to the gradients of its tables."""
    steps = spot.steps(scale)
    score, kept = spot.scores(scale, steps)
    shape = (*spot.shape[:2], -1)
    if steps is not None and factor is not None:
        steps.slope_of_weight(spot.spread(factor.reshape(shape)), torch.ones_like(score))
    if slope is None:
        return
    above = spot.spread(slope.reshape(shape))
    found = product.through_scores(above, *spot.blocks(), scale, steps, kept)
    row, sheet = spot.sheet.row, spot.sheet
    for grad, heads, slots, new in zip(
        grads, (sheet.heads, sheet.key_heads), (spot.q, spot.k), found, strict=True
    ):
        grad[row, heads].index_add_(1, slots.flatten(), new.transpose(0, 1).flatten(1, 2))


def _places(spot: Spot, request: Request) -> Tensor:
    """The place of each pair in the matrix (B, H, L, S): (N, H, P)."""
    rows, columns = spot.allowed
    heads = torch.arange(request.query.shape[1], device=spot.q.device)[spot.sheet.heads]
    first = spot.sheet.row * request.query.shape[1] + heads
    query = first[:, None] * request.query.shape[2] + spot.q[:, None, rows]
    return query * request.key.shape[2] + spot.k[:, None, columns]


def _pairing(
    request: Request, tables: Sequence[Tensor | None], slopes: Sequence[Tensor | None] | None = None
) -> Pairing:
    steps = tuple(zip(request.steps, scoring.firsts(request), strict=True))
    return tiles.paired(steps, tables, slopes if slopes is not None else [None] * len(steps))
