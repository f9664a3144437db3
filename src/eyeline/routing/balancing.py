"""Sinkhorn normalisation: scores to a matrix whose rows and columns sum to 1, causal or not."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from eyeline.routing.at_once import at_once

_STEP = 32


def balanced(scores: Tensor, may: Tensor, *, iterations: int, causal: bool = False) -> Tensor:
    """P = R (C R)^iterations of exp(scores): R divides rows by their sums, C columns by theirs.

    scores: (B, H, N, N), row i takes, column j is taken. may: bool (B or 1, N, N), the pairs that
    can be; the others are exactly 0. Returns (B, H, N, N), float32 or wider, differentiable. Each
    row that may take something sums to 1; columns do in the limit, where as many may take as be
    taken. This is ``iterations`` rounds of rows and columns, and rows once more.

    causal: C divides entry (i, j) by the sum of its column over the rows up to i, so that no row
    depends on a later one. Row j + 1, the first that may take j, then has all of that column.

    Sums are of float64 where the device has it; a score more than 247 below its row's largest
    counts as 247 below (30 in float32), so that no sum vanishes in rounding. Sinkhorn 1964; Tay et
    al. 2020, "Sparse Sinkhorn Attention".
    """
    count = at_once(2 * scores.shape[-1] ** 2)  # of float64
    wide = torch.promote_types(scores.dtype, torch.float32)
    if not scores.numel():
        return scores.to(wide)
    each = may.expand(scores.shape[0], -1, -1)
    rows = [
        torch.cat([_again(part, some, iterations, causal) for part in row.split(count)])
        for row, some in zip(scores, each, strict=True)
    ]
    return torch.stack(rows).to(wide) if len(rows) > 1 else rows[0].to(wide)[None]


def _again(scores: Tensor, may: Tensor, iterations: int, causal: bool) -> Tensor:
    found: Tensor = _Again.apply(scores, may, iterations, causal)  # type: ignore[no-untyped-call]
    return found


class _Again(torch.autograd.Function):
    """``_balanced``, of which nothing is kept for the backward pass but the scores.

    torch's checkpoint does as much, but imports torch.compile, which takes seconds.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, may: Tensor, iterations: int, causal: bool) -> Tensor:
        ctx.save_for_backward(scores, may)
        ctx.options = iterations, causal
        return _balanced(scores, may, iterations, causal)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        scores, may = ctx.saved_tensors
        twice = torch.is_grad_enabled()
        with torch.enable_grad():
            given = scores if twice else scores.detach().requires_grad_()
            p = _balanced(given, may, *ctx.options)
        return *torch.autograd.grad(p, given, grad, create_graph=twice), None, None, None


def _balanced(scores: Tensor, may: Tensor, iterations: int, causal: bool) -> Tensor:
    """Scores (H, N, N) and may (N, N)."""
    wide = torch.float32 if scores.device.type == "mps" else torch.float64
    known = scores.to(wide).masked_fill(~may, -torch.inf)
    top = known.detach().amax(-1, keepdim=True)
    least = 0.35 * math.log(torch.finfo(wide).tiny)  # 1 / exp(least)² is still finite
    below = (known - top.masked_fill(top == -torch.inf, 0.0)).clamp(min=least)
    p = below.exp().masked_fill(~may, 0.0)
    # Where nothing may be taken, 0 is divided by 1.
    sums = _sums_so_far if causal else _sums
    empty_rows = (~may.any(-1, keepdim=True)).to(wide)
    empty_columns = (sums(may.to(wide)) == 0.0).to(wide)
    p = p * (p.sum(-1, keepdim=True) + empty_rows).reciprocal()
    for _ in range(iterations):
        p = p * (sums(p) + empty_columns).reciprocal()
        p = p * (p.sum(-1, keepdim=True) + empty_rows).reciprocal()
    return p.to(torch.promote_types(scores.dtype, torch.float32))


def _sums(p: Tensor) -> Tensor:
    """Of each column."""
    return p.sum(-2, keepdim=True)


def _sums_so_far(p: Tensor) -> Tensor:
    """Of each column down to each row."""
    found: Tensor = _SoFar.apply(p, False)  # type: ignore[no-untyped-call]
    return found


class _SoFar(torch.autograd.Function):
    """Sums of columns down to each row, or up to it from below."""

    @staticmethod
    def forward(ctx: Any, p: Tensor, upward: bool) -> Tensor:
        ctx.upward = upward
        # Products with a triangle, some rows at a time, are faster than cumsum.
        step = min(p.shape[-2], _STEP)
        triangle = torch.ones(step, step, dtype=p.dtype, device=p.device)
        triangle = triangle.triu() if upward else triangle.tril()
        out, before = torch.empty_like(p), torch.zeros_like(p[..., :1, :])
        parts = list(zip(p.split(step, -2), out.split(step, -2), strict=True))
        for part, place in reversed(parts) if upward else parts:
            size = part.shape[-2]
            torch.add(triangle[:size, :size] @ part, before, out=place)
            before = place[..., :1, :] if upward else place[..., -1:, :]
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _SoFar.apply(grad, not ctx.upward), None  # type: ignore[no-untyped-call]
