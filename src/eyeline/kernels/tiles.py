"""Exact attention over the parts of a plan: work for the pairs that look, memory linear in length.

The front door: which batch rows and heads share a plan, and the derivative. What is done with a
plan is in ``execute``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from eyeline.kernels.execute import Inputs, Known, backward, forward
from eyeline.kernels.request import Request
from eyeline.planning.peeling import common
from eyeline.planning.planner import planned
from eyeline.planning.plans import Plan
from eyeline.tokens import Tokens

NAME = "tiles"


def refusal(request: Request) -> str | None:
    """Tiles serve every exact pattern."""
    return None


def run(request: Request) -> tuple[Tensor, Tensor]:
    """output (B, H, L, Ev) and lse (B, H, L); first derivatives of both."""
    sheets = tuple(_sheets(request))
    tensors = (_dense_rows(x) for x in (request.query, request.key, request.value))
    out, lse = _Tiles.apply(*tensors, request.scale, sheets)  # type: ignore[no-untyped-call]
    return out, lse


def first_plan(request: Request) -> Plan:
    """The plan of the first batch row and head."""
    q, k = request.q_tokens.host.row(0), request.k_tokens.host.row(0)
    return planned(request.pattern.at(0, 0), q, k)


@dataclass(frozen=True)
class Sheet:
    """One batch row and some neighbouring heads that share a plan.

    first: whether no sheet before this one is about the same row and heads.
    """

    row: int
    heads: slice
    key_heads: slice
    plan: Plan
    first: bool = True


def _sheets(request: Request) -> Iterator[Sheet]:
    pattern, q, k = request.pattern, request.q_tokens.host, request.k_tokens.host
    heads = slice(0, request.query.shape[1])
    for row in range(request.query.shape[0]):
        tokens = q.row(row), k.row(row)
        if "head" in pattern.varies_by:
            yield from _head_by_head(request, row, tokens)
        else:
            yield _sheet(request, row, heads, planned(pattern.at(row, 0), *tokens))


def _head_by_head(request: Request, row: int, tokens: tuple[Tokens, Tokens]) -> Iterator[Sheet]:
    """What all heads look at is computed for all at once, the rest for each."""
    heads, shared = request.query.shape[1], common(request.pattern)
    alone = isinstance(shared, bool)
    if not isinstance(shared, bool):
        yield _sheet(request, row, slice(0, heads), planned(shared.at(row, 0), *tokens))
    for head in range(heads):
        own = request.pattern.at(row, head)
        rule = own if isinstance(shared, bool) else own & ~shared.at(row, head)
        yield _sheet(request, row, slice(head, head + 1), planned(rule, *tokens), first=alone)


def _sheet(request: Request, row: int, heads: slice, plan: Plan, *, first: bool = True) -> Sheet:
    groups = request.groups
    return Sheet(row, heads, slice(heads.start // groups, -(-heads.stop // groups)), plan, first)


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
            of, keys = (sheet.row, sheet.heads), (sheet.row, sheet.key_heads)
            inputs = Inputs(query[of], key[keys], value[keys])
            forward(sheet.plan, inputs, out[of], lse[of], scale, first=sheet.first)
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
        above = grad_lse[of] if grad_lse is not None else None
        known = Known(out[of], lse[of], grad[of], above)
        inputs = Inputs(query[of], key[keys], value[keys])
        found = Inputs(grads[0][of], grads[1][keys], grads[2][keys])
        backward(sheet.plan, inputs, known, found, ctx.scale)
    return (*(g.to(query.dtype) for g in grads), None, None)


def _dense_rows(x: Tensor) -> Tensor:
    """x with a contiguous last dimension, copied only where it has none."""
    return x if x.stride(-1) == 1 else x.contiguous()
