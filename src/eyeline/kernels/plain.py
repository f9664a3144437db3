"""The product of one block of queries with one block of keys, in plain tensor operations.

Serves every device, dtype and width, and the gradient of the log-sum-exp. Shapes: q (N, H, R, E),
k (N, Hk, C, E), v (N, Hk, C, Ev), mask bool (R, C) or None, out (N, H, R, Ev), lse (N, H, R).
"""

from __future__ import annotations

import torch
from torch import Tensor

NAME = "plain"


def forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp; 0 and -inf for a row that may look at nobody."""
    score = _scores(q, k, mask, scale)
    lse = score.logsumexp(-1, keepdim=True)
    weight = score.sub_(lse.masked_fill(lse == -torch.inf, 0.0)).exp_()
    out = _times(weight, _wide(v))
    return out.to(v.dtype), lse.squeeze(-1)


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
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, given the *merged* out and lse of each row (+inf for empty rows).

    With P = exp(score - lse):  dv = Pᵀ·grad,  dS = P·(grad·vᵀ - delta),  dq = scale·dS·k,
    dk = scale·dSᵀ·q,  where delta = Σ grad·out - grad_lse.
    """
    weight = _scores(q, k, mask, scale).sub_(lse.unsqueeze(-1)).exp_()
    grad_wide, out_wide = _wide(grad), _wide(out)
    delta = (grad_wide * out_wide).sum(-1, keepdim=True)
    if grad_lse is not None:
        delta = delta - grad_lse.unsqueeze(-1)
    heads = k.shape[1]
    grad_v = _folded(weight, heads).transpose(-2, -1) @ _folded(grad_wide, heads)
    slope = _times(grad_wide, _wide(v).transpose(-2, -1)).sub_(delta).mul_(weight).mul_(scale)
    grad_q = _times(slope, _wide(k))
    grad_k = _folded(slope, heads).transpose(-2, -1) @ _folded(_wide(q), heads)
    return grad_q, grad_k, grad_v


def _scores(q: Tensor, k: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    score = _times(_wide(q), _wide(k).transpose(-2, -1)).mul_(scale)
    return score if mask is None else score.masked_fill_(~mask, -torch.inf)


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
