"""Blocks beside their mixtures: a product with a matrix, of which a half that is 0 is left out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from eyeline.kernels.autograd import only_once

# So many rows of the matrix at a time: the fewer, the closer to half of the work.
_ROWS = 64


def beside(p: Tensor, x: Tensor, lower: bool) -> Tensor:
    """[x, p x]: p (B, H, N, N) and x (B, H, N, E) to (B, H, N, 2, E).

    lower: whether p is 0 from its diagonal up. First derivatives.
    """
    out: Tensor = _Beside.apply(p.flatten(0, 1), x.flatten(0, 1), lower)  # type: ignore[no-untyped-call]
    return out.view(*x.shape[:3], 2, x.shape[3])


def parts(count: int, lower: bool) -> list[tuple[int, int]]:
    """Rows first to end of p, whose columns are 0 from ``end`` on."""
    step = _ROWS if lower else max(count, 1)
    return [(i, min(i + step, count)) for i in range(0, count, step)]


class _Beside(torch.autograd.Function):
    """p (A, N, N) and x (A, N, E) to (A, N, 2, E)."""

    @staticmethod
    def forward(ctx: Any, p: Tensor, x: Tensor, lower: bool) -> Tensor:
        ctx.save_for_backward(p, x)
        ctx.lower = lower
        out = x.new_empty(*x.shape[:2], 2, x.shape[2])
        out[:, :, 0] = x
        for first, end in parts(p.shape[1], lower):
            out[:, first:end, 1] = p[:, first:end, :end] @ x[:, :end]
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        p, x = ctx.saved_tensors
        with torch.no_grad(), torch.autocast(grad.device.type, enabled=False):
            dp, dx = torch.zeros_like(p), grad[:, :, 0].clone()
            for first, end in parts(p.shape[1], ctx.lower):
                above = grad[:, first:end, 1]
                dp[:, first:end, :end] = above @ x[:, :end].mT
                dx[:, :end].baddbmm_(p[:, first:end, :end].mT, above)
        return only_once("sinkhorn attention", (dp, dx, None), p, x, grad)
