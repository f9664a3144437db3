"""The product of one block of queries with one block of keys, in plain tensor operations.

Serves every device, dtype and width, the gradient of the log-sum-exp, and steps that change
scores, weights or output. Shapes: q (N, H, R, E), k (N, Hk, C, E), v (N, Hk, C, Ev), mask bool
(R, C) or None, out (N, H, R, Ev), lse (N, H, R).
"""

from __future__ import annotations

import torch
from torch import Tensor

from eyeline.kernels.mask_numbers import barred
from eyeline.kernels.steps import Steps

NAME = "plain"


def forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, steps: Steps | None = None
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp; 0 and -inf for a row that may look at nobody."""
    score, _ = scores(q, k, mask, scale, steps)
    top = score.amax(-1, keepdim=True)
    top = top.masked_fill_(top == -torch.inf, 0.0)
    weight = score.sub_(top).exp_()
    total = weight.sum(-1, keepdim=True)
    if steps is not None:
        weight = steps.weigh(weight)
    out = _times(weight, _wide(v))
    if steps is not None:
        out = steps.extra(out, weight)
    out = out.div_(total.masked_fill(total == 0.0, 1.0))
    return out.to(v.dtype), total.log_().add_(top).squeeze(-1)


def backward(
    grad: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    mask: Tensor | None,
    scale: float,
    steps: Steps | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, given the *merged* out and lse of each row (+inf for empty rows).

    With P = exp(score - lse):  dv = Pᵀ·grad,  dS = P·(grad·vᵀ - delta),  dq = scale·dS·k,
    dk = scale·dSᵀ·q,  where delta = Σ grad·out - grad_lse. Steps change P, grad·vᵀ and dS.
    """
    score, kept = scores(q, k, mask, scale, steps)
    weight = score.sub_(lse.unsqueeze(-1)).exp_()
    used = weight if steps is None else steps.weigh(weight)
    grad_wide, out_wide = _wide(grad), _wide(out)
    delta = (grad_wide * out_wide).sum(-1, keepdim=True)
    if grad_lse is not None:
        delta = delta - grad_lse.unsqueeze(-1)
    heads = k.shape[1]
    grad_v = _folded(used, heads).transpose(-2, -1) @ _folded(grad_wide, heads)
    slope = _times(grad_wide, _wide(v).transpose(-2, -1))
    if steps is not None:
        slope = steps.slope_of_extra(slope, grad_wide, used)
        slope = steps.slope_of_weight(slope, weight)
    slope = slope.sub_(delta).mul_(weight)
    return (*through_scores(slope, q, k, scale, steps, kept), grad_v)


def through_scores(
    slope: Tensor,
    q: Tensor,
    k: Tensor,
    scale: float,
    steps: Steps | None,
    kept: list[Tensor | None],
) -> tuple[Tensor, Tensor]:
    """The slope of changed scores, which is used up, to the gradients of q and k."""
    if steps is not None:
        slope = steps.slope_before(slope, kept)
    slope = slope.mul_(scale)
    grad_q = _times(slope, _wide(k))
    heads = k.shape[1]
    grad_k = _folded(slope, heads).transpose(-2, -1) @ _folded(_wide(q), heads)
    for more in steps.block.grad_query if steps is not None else ():
        grad_q = grad_q.add_(more)
    return grad_q, grad_k


def scores(
    q: Tensor, k: Tensor, mask: Tensor | None, scale: float, steps: Steps | None
) -> tuple[Tensor, list[Tensor | None]]:
    """Changed scores, -inf under the mask, and what the steps' derivatives need of them."""
    score = _times(_wide(q) * scale, _wide(k).transpose(-2, -1))
    score, kept = (score, []) if steps is None else steps.change(score)
    if mask is not None:
        score.add_(barred(mask, score.dtype))
    return score, kept


def _times(rows: Tensor, keys: Tensor) -> Tensor:
    """(N, H, R, x) times (N, Hk, x, y); the query heads of one key head are rows of one product."""
    product = _folded(rows, keys.shape[1]) @ keys
    return product.view(*rows.shape[:-1], keys.shape[-1])


def _folded(rows: Tensor, heads: int) -> Tensor:
    """(N, H, R, x) as (N, Hk, H/Hk·R, x)."""
    blocks, all_heads, length, width = rows.shape
    return rows.reshape(blocks, heads, all_heads // heads * length, width)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
