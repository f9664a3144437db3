"""Attention along a route: gather the rows of each block, attend, and bring the results back.

Blocks give outputs and log-sum-exps of their own. A query that stands in several places merges
them exactly, as the parts of a plan do (``execute``), and so the backward pass needs no merge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from eyeline.checks import wide_dtype
from eyeline.kernels import flash, selected
from eyeline.kernels.autograd import only_once
from eyeline.kernels.flash import Blocks
from eyeline.kernels.product import Pairing
from eyeline.kernels.route_pieces import Piece, Routed
from eyeline.kernels.tiles import paired


def run(
    work: Routed,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tables: Sequence[Tensor | None] = (),
) -> tuple[Tensor, Tensor]:
    """output (B, H, L, Ev) and lse (B, H, L), 0 and -inf for who meets nobody; differentiable.

    query (B, H, L, E), key (B, Hk, S, E), value (B, Hk, S, Ev). tables: for each of the work's
    steps what its curve gives, or None.
    """
    out, lse = _Routed.apply(work, query, key, value, *tables)  # type: ignore[no-untyped-call]
    return out, lse


def reached(work: Routed) -> tuple[Tensor, Tensor]:
    """Who looks at somebody, bool (B, H, L), and who is looked at, bool (B, H, S)."""
    (batch, heads), device = work.route.queries.shape[:2], work.route.queries.device
    looks, seen = (
        torch.zeros(batch, heads, tokens.length, dtype=torch.bool, device=device)
        for tokens in (work.q_tokens, work.k_tokens)
    )
    # No key is read: each query head has marks of its own.
    for some in replace(work, groups=1).heads:
        for piece in some.pieces(0):
            mask = piece.mask()
            there = piece.is_somebody.unsqueeze(3)
            mask = there if mask is None else mask & there
            some.of_queries(looks)[piece.q_slots[mask.any(3)]] = True
            some.of_keys(seen)[piece.k_slots[mask.any(2).expand(piece.k_slots.shape)]] = True
    return looks, seen


class _Routed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, work: Routed, query: Tensor, key: Tensor, value: Tensor, *tables: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        pairing = paired(work.steps, tables, (None,) * len(tables))
        out, lse = _results(work, pairing, query, key, value)
        ctx.save_for_backward(query, key, value, out, lse, *tables)
        ctx.work = work
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
        query, key, value, out, lse, *tables = ctx.saved_tensors
        of_tables = [
            torch.zeros_like(table) if table is not None and wanted else None
            for table, wanted in zip(tables, ctx.needs_input_grad[4:], strict=True)
        ]
        pairing = paired(ctx.work.steps, tables, of_tables)
        with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
            grads = _gradients(ctx.work, pairing, (query, key, value), (out, lse), (grad, grad_lse))
        of = (query, key, value, *tables, grad, grad_lse)
        return None, *only_once("attention along a route", (*grads, *of_tables), *of)


def _results(
    work: Routed, pairing: Pairing, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor]:
    if selected.serves(work):
        return selected.results(work, query, key, value)
    wide = wide_dtype(query)
    out = value.new_empty(*query.shape[:3], value.shape[3])
    lse = query.new_empty(query.shape[:3], dtype=wide)
    # One for all heads: fresh memory for each would be given page by page.
    all_rows = lse.new_empty(*work.places(work.route.queries), value.shape[3])
    all_lse = lse.new_empty(all_rows.shape[:2])
    for heads in work.heads:
        q, k, v = heads.of(query, key, value)
        rows, row_lse = (x[: heads.lanes] for x in (all_rows, all_lse))
        place = 2 * (k.shape[1] + v.shape[1]) * q.element_size() + _row_bytes(pairing)
        for piece in heads.pieces(place):
            found = _forward(piece, (piece.rows(q), piece.columns(k), piece.columns(v)), pairing)
            piece.put(rows, found[0])
            piece.put(row_lse, found[1])
        total, share = heads.query_bags.shares(row_lse)
        heads.of_queries(lse).copy_(total)
        heads.of_queries(out).copy_(heads.query_bags.sums(rows, share))
    return out, lse


def _gradients(
    work: Routed,
    pairing: Pairing,
    inputs: tuple[Tensor, Tensor, Tensor],
    results: tuple[Tensor, Tensor],
    above: tuple[Tensor | None, Tensor | None],
) -> tuple[Tensor, ...]:
    (out, lse), (grad, grad_lse) = results, above
    grad = grad if grad is not None else torch.zeros_like(out)
    # exp(score - inf) = 0: who meets nobody, and an empty place, adds nothing.
    empty = lse == -torch.inf
    lse = lse.masked_fill(empty, torch.inf)
    if grad_lse is not None:
        grad_lse = grad_lse.masked_fill(empty, 0.0)
    if selected.serves(work):
        slopes = selected.gradients(work, inputs, (out, lse), (grad, grad_lse))
        return tuple(x.to(y.dtype) for x, y in zip(slopes, inputs, strict=True))
    grads = [x.new_empty(x.shape, dtype=lse.dtype) for x in inputs]
    all_places = [
        lse.new_empty(*work.places(slots), x.shape[3])
        for slots, x in zip((work.route.queries, *[work.route.keys] * 2), inputs, strict=True)
    ]
    for heads in work.heads:
        q, k, v = heads.of(*inputs)
        known = [None if x is None else heads.of_queries(x) for x in (out, lse, grad, grad_lse)]
        dq, dk, dv = (x[: heads.lanes] for x in all_places)
        heads.clear(dk)
        heads.clear(dv)
        place = 4 * (k.shape[1] + v.shape[1]) * dq.element_size() + 2 * _row_bytes(pairing)
        for piece in heads.pieces(place):
            blocks = piece.rows(q), piece.columns(k), piece.columns(v)
            of_rows = [None if x is None else piece.rows(x) for x in known]
            slopes = _backward(piece, blocks, of_rows, pairing)
            piece.put(dq, slopes[0])
            piece.add(dk, slopes[1])
            piece.add(dv, slopes[2])
        heads.of_queries(grads[0]).copy_(heads.query_bags.sums(dq))
        keys = heads.key_bags()
        for grad_of_keys, found in zip(grads[1:], (dk, dv), strict=True):
            heads.add_to_keys(grad_of_keys, keys.sums(found))
    return tuple(x.to(y.dtype) for x, y in zip(grads, inputs, strict=True))


def _row_bytes(pairing: Pairing) -> int:
    """What a query takes for tables of vectors: its product with each of them."""
    return sum(
        table.values.shape[1] * table.values.element_size()
        for _, table in pairing if table is not None and table.values.dim() == 3
    )  # fmt: skip


def _forward(piece: Piece, blocks: Blocks, pairing: Pairing) -> tuple[Tensor, Tensor]:
    fused, shape = flash.serves(blocks[0], blocks[2]) and not pairing, blocks[0].shape[:2]
    q, k, v = (x if fused else _alone(x) for x in blocks)
    mask, steps = _mask(piece, fused), piece.steps(blocks[0], pairing)
    out, lse = flash.results((q, k, v), mask, piece.of.work.scale, steps=steps, fused=fused)
    if fused:
        return out, lse
    return out.squeeze(1).unflatten(0, shape), lse.squeeze(1).unflatten(0, shape)


def _backward(piece: Piece, blocks: Blocks, known: list[Tensor | None], pairing: Pairing) -> Blocks:
    """known: output, lse, and the gradients given for them, at the piece's queries."""
    out, lse, grad, grad_lse = known
    assert out is not None and lse is not None and grad is not None
    lse, shape = lse.masked_fill(~piece.is_somebody, torch.inf), lse.shape[:2]
    fused = flash.serves(blocks[0], blocks[2]) and not pairing and grad_lse is None
    given = (grad, *blocks, out, lse)
    grad, q, k, v, out, lse = (x if fused else _alone(x) for x in given)
    mask, steps = _mask(piece, fused), piece.steps(blocks[0], pairing)
    grads = flash.gradients(
        (grad, None if grad_lse is None else _alone(grad_lse)), (q, k, v), (out, lse),
        mask, piece.of.work.scale, steps=steps, fused=fused,
    )  # fmt: skip
    dq, dk, dv = (x if fused else x.squeeze(1).unflatten(0, shape) for x in grads)
    return dq, dk, dv


def _mask(piece: Piece, fused: bool) -> Tensor | None:
    mask = piece.mask()
    return mask if mask is None or fused else _alone(mask)


def _alone(x: Tensor) -> Tensor:
    """Blocks (A, N, …) as heads of their own, (A · N, 1, …): the plain product's masks and steps
    differ by block."""
    return x.flatten(0, 1).unsqueeze(1)
