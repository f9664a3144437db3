"""Exact attention over the parts of a plan: work for the pairs that look, memory linear in length.

Each part gives an output and a log-sum-exp for its queries; they merge exactly:

    lse = log(exp lse₁ + exp lse₂),   out = exp(lse₁ - lse)·out₁ + exp(lse₂ - lse)·out₂

The backward pass needs no merge: with the merged output and log-sum-exp every part's gradients
are already right, and add up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from eyeline.kernels import flash, plain
from eyeline.kernels.pieces import Footprint, Piece, pieces
from eyeline.kernels.request import Request
from eyeline.planning.planner import Plan, planned

NAME = "tiles"

# Working memory of one piece, in bytes.
_BUDGET = 4 << 20


def refusal(request: Request) -> str | None:
    """Tiles serve every exact pattern."""
    return None


def run(request: Request) -> tuple[Tensor, Tensor]:
    """output (B, H, L, Ev) and lse (B, H, L); first derivatives of both."""
    sheets = tuple(_sheets(request))
    tensors = (_dense_rows(x) for x in (request.query, request.key, request.value))
    out, lse = _Tiles.apply(*tensors, request.scale, sheets)  # type: ignore[no-untyped-call]
    return out, lse


@dataclass(frozen=True)
class Sheet:
    """One batch row and some neighbouring heads that share a plan."""

    row: int
    heads: slice
    key_heads: slice
    plan: Plan


def _sheets(request: Request) -> Iterator[Sheet]:
    batch, heads = request.query.shape[:2]
    pattern, groups = request.pattern, request.groups
    q, k = request.q_tokens.host, request.k_tokens.host
    for row in range(batch):
        tokens = q.row(row), k.row(row)
        if "head" not in pattern.varies_by:
            plan = planned(pattern.at(row, 0), *tokens)
            yield Sheet(row, slice(0, heads), slice(0, heads // groups), plan)
            continue
        for head in range(heads):
            plan = planned(pattern.at(row, head), *tokens)
            own = slice(head // groups, head // groups + 1)
            yield Sheet(row, slice(head, head + 1), own, plan)


class _Tiles(torch.autograd.Function):
    """The parts' products, forward and backward, as one differentiable function."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        sheets: tuple[Sheet, ...],
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(query.dtype, torch.float32)
        # Half types are merged in float32 and rounded once.
        out = value.new_zeros(*query.shape[:3], value.shape[-1], dtype=wide)
        lse = query.new_full(query.shape[:3], -torch.inf, dtype=wide)
        for sheet in sheets:
            of = (sheet.row, sheet.heads)
            keys = (sheet.row, sheet.key_heads)
            _forward(sheet.plan, query[of], key[keys], value[keys], out[of], lse[of], scale)
        out = out.to(value.dtype)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.scale, ctx.sheets = scale, sheets
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
        with torch.autocast(ctx.saved_tensors[0].device.type, enabled=False):
            return _gradients(ctx, grad, grad_lse)


def _gradients(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
    query, key, value, out, lse = ctx.saved_tensors
    wide = torch.promote_types(query.dtype, torch.float32)
    grads = tuple(torch.zeros_like(x, dtype=wide) for x in (query, key, value))
    grad = _dense_rows(grad) if grad is not None else torch.zeros_like(out)
    # exp(score - inf) = 0: an empty row, whose score - lse would be inf - inf, adds nothing.
    lse = lse.masked_fill(lse == -torch.inf, torch.inf)
    if grad_lse is not None:
        grad_lse = grad_lse.masked_fill(lse == torch.inf, 0.0)
    for sheet in ctx.sheets:
        of, keys = (sheet.row, sheet.heads), (sheet.row, sheet.key_heads)
        _backward(
            sheet.plan,
            (grad[of], grad_lse[of] if grad_lse is not None else None),
            (query[of], key[keys], value[keys]),
            (out[of], lse[of]),
            (grads[0][of], grads[1][keys], grads[2][keys]),
            ctx.scale,
        )
    return (*(g.to(query.dtype) for g in grads), None, None)


def _forward(
    plan: Plan, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float
) -> None:
    product = flash if flash.serves(q, v) else plain
    touched = bytearray(q.shape[1])
    footprint = _footprint(q, k, v, fused=product is flash, backward=False)
    for part in plan.parts:
        for piece in pieces(plan, part, footprint, _BUDGET):
            mask = None if piece.mask is None else piece.mask.to(q.device)
            new_out, new_lse = product.forward(
                piece.queries(q), piece.keys(k), piece.keys(v), mask, scale
            )
            first, end = piece.span()
            if touched.find(1, first, end) >= 0:
                _merge(piece, out, lse, new_out.to(out.dtype), new_lse)
            else:
                piece.put_queries(out, new_out)
                piece.put_queries(lse, new_lse)
            touched[first:end] = b"\1" * (end - first)


def _merge(piece: Piece, out: Tensor, lse: Tensor, new_out: Tensor, new_lse: Tensor) -> None:
    """Take one more result for the piece's queries into out and lse. new_out is used up."""
    old_lse = piece.queries(lse)
    total = torch.logaddexp(old_lse, new_lse)
    finite = total.masked_fill(total == -torch.inf, 0.0)
    old_share = (old_lse - finite).exp_().unsqueeze(-1)
    new_out.mul_((new_lse - finite).exp_().unsqueeze(-1))
    piece.add_queries(out, new_out, share=old_share)
    piece.put_queries(lse, total)


def _backward(
    plan: Plan,
    grad: tuple[Tensor, Tensor | None],
    inputs: tuple[Tensor, Tensor, Tensor],
    outputs: tuple[Tensor, Tensor],
    grads: tuple[Tensor, Tensor, Tensor],
    scale: float,
) -> None:
    q, k, v = inputs
    fused = flash.serves(q, v) and grad[1] is None
    footprint = _footprint(q, k, v, fused=fused, backward=True)
    for part in plan.parts:
        for piece in pieces(plan, part, footprint, _BUDGET):
            mask = None if piece.mask is None else piece.mask.to(q.device)
            blocks = (piece.queries(q), piece.keys(k), piece.keys(v))
            merged = (piece.queries(outputs[0]), piece.queries(outputs[1]))
            above = piece.queries(grad[0])
            if fused:
                parts = flash.backward(above, *blocks, *merged, mask, scale)
            else:
                lse = piece.queries(grad[1]) if grad[1] is not None else None
                parts = plain.backward(above, lse, *blocks, *merged, mask, scale)
            piece.add_queries(grads[0], parts[0])
            piece.add_keys(grads[1], parts[1])
            piece.add_keys(grads[2], parts[2])


def _footprint(q: Tensor, k: Tensor, v: Tensor, *, fused: bool, backward: bool) -> Footprint:
    """What the products hold at once. The fused operator keeps no scores; the plain one does."""
    size = max(q.element_size(), 4)
    heads, key_heads = q.shape[0], k.shape[0]
    query = heads * (q.shape[2] if backward else v.shape[2]) * size
    key = key_heads * (k.shape[2] + v.shape[2]) * size if backward else 0
    return Footprint(query, key, 0 if fused else 3 * heads * size)


def _dense_rows(x: Tensor) -> Tensor:
    """x with a contiguous last dimension, copied only where it has none."""
    return x if x.stride(-1) == 1 else x.contiguous()
