"""Attention along a route: gather the rows of each block, look, and bring the results back.

Blocks give outputs and log-sum-exps of their own. A query that stands in several places merges
them exactly, as the parts of a plan do (``execute``), and so the backward pass needs no merge.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from eyeline.kernels import flash, plain, selected
from eyeline.kernels.bags import Bags
from eyeline.kernels.once import only_once
from eyeline.kernels.route_pieces import Piece, Routed

Blocks = tuple[Tensor, Tensor, Tensor]
"""Queries (A, N, R, E), keys (A, N, C, E) and values (A, N, C, Ev)."""


def run(work: Routed, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """output (B, H, L, Ev) and lse (B, H, L), 0 and -inf for who meets nobody; differentiable.

    query (B, H, L, E), key (B, Hk, S, E), value (B, Hk, S, Ev).
    """
    out, lse = _Routed.apply(work, query, key, value)  # type: ignore[no-untyped-call]
    return out, lse


def reached(work: Routed) -> tuple[Tensor, Tensor]:
    """Who looks at somebody, bool (B, H, L), and who is looked at, bool (B, H, S)."""
    shape, device = work.route.queries.shape[:2], work.route.queries.device
    looks, seen = (
        torch.zeros(*shape, tokens.length + 1, dtype=torch.bool, device=device)
        for tokens in (work.q_tokens, work.k_tokens)
    )
    for head in work.heads():
        for piece in head.pieces(0):
            mask = piece.mask()
            some = piece.is_somebody.unsqueeze(3)
            mask = some if mask is None else mask & some
            looks[head.row, head.head, piece.q_slots[mask.any(3)]] = True
            seen[head.row, head.head, piece.k_slots[mask.any(2).expand(piece.k_slots.shape)]] = True
    return looks[..., :-1], seen[..., :-1]


class _Routed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, work: Routed, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor]:
        out, lse = _results(work, query, key, value)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.work = work
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
        query, key, value, out, lse = ctx.saved_tensors
        with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
            found = _gradients(ctx.work, (query, key, value), (out, lse), (grad, grad_lse))
        of = (query, key, value, grad, grad_lse)
        return None, *only_once("attention along a route", found, *of)


def _results(work: Routed, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    if selected.serves(work):
        return selected.results(work, query, key, value)
    wide = torch.promote_types(query.dtype, torch.float32)
    out = value.new_zeros(*query.shape[:3], value.shape[3])
    lse = query.new_full(query.shape[:3], -torch.inf, dtype=wide)
    # One for all heads: fresh memory for each would be given page by page.
    places = work.route.queries.shape[2:]
    rows, row_lse = lse.new_empty(*places, value.shape[3]), lse.new_empty(places)
    for head in work.heads():
        q, k, v = head.of(query, key, value)
        for piece in head.pieces(2 * (k.shape[1] + v.shape[1]) * q.element_size()):
            found = _forward(piece, (piece.rows(q), piece.columns(k), piece.columns(v)))
            piece.put(rows, found[0])
            piece.put(row_lse, found[1])
        bags = Bags(head.queries, q.shape[0])
        lse[head.row, head.head], share = bags.shares(row_lse)
        out[head.row, head.head] = bags.sums(rows, share)
    return out, lse


def _gradients(
    work: Routed,
    inputs: tuple[Tensor, Tensor, Tensor],
    results: tuple[Tensor, Tensor],
    above: tuple[Tensor | None, Tensor | None],
) -> tuple[Tensor, ...]:
    (out, lse), (grad, grad_lse) = results, above
    grads = [torch.zeros_like(x, dtype=lse.dtype) for x in inputs]
    grad = grad if grad is not None else torch.zeros_like(out)
    # exp(score - inf) = 0: who meets nobody, and an empty place, adds nothing.
    empty = lse == -torch.inf
    lse = lse.masked_fill(empty, torch.inf)
    if grad_lse is not None:
        grad_lse = grad_lse.masked_fill(empty, 0.0)
    if selected.serves(work):
        found = selected.gradients(work, inputs, (out, lse), (grad, grad_lse))
        return tuple(x.to(y.dtype) for x, y in zip(found, inputs, strict=True))
    dq, dk, dv = (
        lse.new_empty(*slots.shape[2:], x.shape[3])
        for slots, x in zip((work.route.queries, *[work.route.keys] * 2), inputs, strict=True)
    )
    for head in work.heads():
        q, k, v = head.of(*inputs)
        known = [x if x is None else x[head.row, head.head] for x in (out, lse, grad, grad_lse)]
        if not work.route.apart:
            dk.zero_()
            dv.zero_()
        for piece in head.pieces(4 * (k.shape[1] + v.shape[1]) * dq.element_size()):
            blocks = piece.rows(q), piece.columns(k), piece.columns(v)
            slopes = _backward(piece, blocks, [None if x is None else piece.rows(x) for x in known])
            piece.put(dq, slopes[0])
            piece.add(dk, slopes[1])
            piece.add(dv, slopes[2])
        keys = Bags(head.keys, k.shape[0])
        own = head.of(*grads)
        own[0].copy_(Bags(head.queries, q.shape[0]).sums(dq))
        own[1].add_(keys.sums(dk))
        own[2].add_(keys.sums(dv))
    return tuple(x.to(y.dtype) for x, y in zip(grads, inputs, strict=True))


def _forward(piece: Piece, blocks: Blocks) -> tuple[Tensor, Tensor]:
    work, mask = piece.of.work, piece.mask()
    if flash.serves(blocks[0], blocks[2]) and work.dropout is None:
        return flash.forward(*blocks, mask, work.scale)
    shape = blocks[0].shape[:2]
    one = [x.flatten(0, 1).unsqueeze(1) for x in blocks]
    found = plain.forward(one[0], one[1], one[2], _one(mask), work.scale, piece.steps(blocks[0]))
    out, lse = (x.squeeze(1).unflatten(0, shape) for x in found)
    return out, lse


def _backward(piece: Piece, blocks: Blocks, known: list[Tensor | None]) -> Blocks:
    """known: output, lse, and the gradients given for them, at the piece's queries."""
    work, mask = piece.of.work, piece.mask()
    out, lse, grad, grad_lse = known
    assert out is not None and lse is not None and grad is not None
    lse = lse.masked_fill(~piece.is_somebody, torch.inf)
    if flash.serves(blocks[0], blocks[2]) and work.dropout is None and grad_lse is None:
        return flash.backward(grad, *blocks, out, lse, mask, work.scale)
    shape, steps = lse.shape[:2], piece.steps(blocks[0])
    q, k, v, out, lse, grad = (x.flatten(0, 1).unsqueeze(1) for x in (*blocks, out, lse, grad))
    if grad_lse is not None:
        grad_lse = grad_lse.flatten(0, 1).unsqueeze(1)
    found = plain.backward(grad, grad_lse, q, k, v, out, lse, _one(mask), work.scale, steps)
    dq, dk, dv = (x.squeeze(1).unflatten(0, shape) for x in found)
    return dq, dk, dv


def _one(mask: Tensor | None) -> Tensor | None:
    """Masks of blocks that are alone in their head."""
    return None if mask is None else mask.flatten(0, 1).unsqueeze(1)
