"""Attention along a route whose blocks are one query each: sums of rows where they already lie.

There a block's products are of one row, and what costs time is moving rows. So values are never
copied next to each other, nor is a row of a gradient made for a pair: out[i] = Σ_j P_ij v_j,
dq[i] = Σ_j dS_ij k_j, dk[j] = Σ_i dS_ij q_i and dv[j] = Σ_i P_ij grad_i are weighted sums of rows
that are picked by index. What is kept for a pair is one number, or two.
"""

from __future__ import annotations

from typing import NamedTuple, final

import torch
from torch import Tensor

from eyeline.checks import wide_dtype
from eyeline.kernels.route import weighted
from eyeline.kernels.route_pieces import Heads, Piece, Routed


def serves(work: Routed) -> bool:
    """Whether blocks are of one query and keys of its own, and no step changes the scores."""
    route = work.route
    return route.rows == 1 and route.apart and not work.steps


def results(work: Routed, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """output (B, H, L, Ev) and lse (B, H, L), 0 and -inf for who meets nobody."""
    wide = wide_dtype(query)
    out = value.new_empty(*query.shape[:3], value.shape[3])
    lse = query.new_empty(query.shape[:3], dtype=wide)
    for heads in work.heads:
        q, k, v = (x.to(wide) for x in heads.of(query, key, value))
        score = q.new_empty(heads.lanes, work.route.blocks, work.route.columns)
        for piece in heads.pieces(2 * k.shape[1] * k.element_size()):
            _cut(score, piece).copy_(_scores(piece, q, k))
        top = score.amax(-1, keepdim=True)
        top.masked_fill_(top == -torch.inf, 0.0)
        weight = score.sub_(top).exp_()
        total = weight.sum(-1, keepdim=True)
        weight.div_(total.masked_fill(total == 0.0, 1.0))
        # Nobody's place weighs 0, whichever slot is read for it.
        rows = weighted(_keys(heads), v, weight)
        found, share = heads.query_bags.shares(total.log_().add_(top))
        heads.of_queries(lse).copy_(found)
        heads.of_queries(out).copy_(heads.query_bags.sums(rows, share))
    return out, lse


def gradients(
    work: Routed,
    inputs: tuple[Tensor, Tensor, Tensor],
    results: tuple[Tensor, Tensor],
    above: tuple[Tensor, Tensor | None],
) -> tuple[Tensor, ...]:
    """Of query, key and value, in the type of the log-sum-exp.

    results: output, and log-sum-exp with +inf for who meets nobody; above: their gradients.
    """
    (out, lse), (grad, grad_lse) = results, above
    grads = tuple(x.new_empty(x.shape, dtype=lse.dtype) for x in inputs)
    # In rows, delta costs nothing; in pairs it would be multiplied again.
    delta = (grad.to(lse.dtype) * out.to(lse.dtype)).sum(-1)
    delta = delta if grad_lse is None else delta - grad_lse
    for heads in work.heads:
        q, k, v = (x.to(lse.dtype) for x in heads.of(*inputs))
        above_q = heads.of_queries(grad).to(lse.dtype)
        rows = _Rows(q, k, v, above_q, heads.of_queries(lse), heads.of_queries(delta))
        weight, slope = _pairs(heads, rows)
        asked = weighted(_keys(heads), k, slope)
        heads.of_queries(grads[0]).copy_(heads.query_bags.sums(asked))
        columns = _Columns(heads)
        heads.add_to_keys(grads[1], columns.sums(q, slope))
        heads.add_to_keys(grads[2], columns.sums(rows.grad, weight))
    return grads


class _Rows(NamedTuple):
    """What a head has for each of its queries and keys."""

    query: Tensor
    key: Tensor
    value: Tensor
    grad: Tensor
    lse: Tensor
    delta: Tensor


def _pairs(heads: Heads, rows: _Rows) -> tuple[Tensor, Tensor]:
    """P and dS of all pairs, (A, N, C) each: the weight, and the slope of scale · q·k by q·k."""
    route = heads.work.route
    shape = heads.lanes, route.blocks, route.columns
    weight, slope = (rows.lse.new_empty(shape) for _ in range(2))
    a_place = 2 * (rows.key.shape[1] + rows.value.shape[1]) * weight.element_size()
    for piece in heads.pieces(a_place):
        for x, found in zip((weight, slope), _slopes(piece, rows), strict=True):
            _cut(x, piece).copy_(found)
    return weight, slope


def _slopes(piece: Piece, rows: _Rows) -> tuple[Tensor, Tensor]:
    """P and dS of a few blocks, (A, count, C)."""
    lse = piece.rows(rows.lse).masked_fill(~piece.is_somebody, torch.inf)
    weight = _scores(piece, rows.query, rows.key).sub_(lse).exp_()
    slope = _products(piece.rows(rows.grad), piece.columns(rows.value))
    slope.sub_(piece.rows(rows.delta)).mul_(weight).mul_(piece.of.work.scale)
    return weight, slope


def _scores(piece: Piece, query: Tensor, key: Tensor) -> Tensor:
    """scale · q·k of a few blocks, (A, count, C), -inf for who may not look."""
    score = _products(piece.rows(query), piece.columns(key)).mul_(piece.of.work.scale)
    mask = piece.mask()
    return score if mask is None else score.masked_fill_(~mask.squeeze(2), -torch.inf)


def _products(rows: Tensor, columns: Tensor) -> Tensor:
    """(A, n, 1, E) and (A, n, C, E) to (A, n, C)."""
    return (rows @ columns.mT).squeeze(2)


def _cut(pairs: Tensor, piece: Piece) -> Tensor:
    """A piece's part of what all blocks have."""
    return pairs[:, piece.first : piece.first + piece.count]


def _keys(heads: Heads) -> Tensor:
    """The slots that are read for each block's keys, (A · N, C)."""
    return heads.keys.reshape(-1, heads.work.route.columns)


@final
class _Columns:
    """For each key the places where it stands, and the queries that look there."""

    def __init__(self, heads: Heads) -> None:
        found = heads.key_bags()
        self._places, self._starts = found.places, found.starts
        block = self._places // heads.work.route.columns
        self._queries = heads.queries.flatten()[block]

    def sums(self, x: Tensor, weight: Tensor) -> Tensor:
        """Σ weight · x[query] over the places of each key, (n · S, E)."""
        return weighted(self._queries, x, weight.flatten()[self._places], self._starts)
