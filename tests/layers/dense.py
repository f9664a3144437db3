"""Multi-head attention written out from the papers, and torch's own weights copied over."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from eyeline.layers import FeedForward, MultiHeadAttention


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def drawn(module: nn.Module, seed: int = 0) -> nn.Module:
    """Every parameter drawn anew, so that no bias is 0 and no norm 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) * 0.4)
            if "norm" in name and p.dim() == 1:
                p.add_(1)
    return module


def heads_of(x: Tensor, linear: nn.Linear, width: int) -> Tensor:
    """(B, L, d) to (B, heads, L, width), head by head."""
    y = x @ linear.weight.T + (linear.bias if linear.bias is not None else 0)
    return torch.stack(y.split(width, -1), 1)


def dense(
    layer: MultiHeadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | float = 0.0,
) -> Tensor:
    """W_o [softmax(q_h k_hᵀ / √E + bias) v_h; …], one head after the other."""
    q, k, v = (
        heads_of(x, linear, layer.head_dim)
        for x, linear in (
            (query, layer.q_proj), (key, layer.k_proj), (value, layer.v_proj),
        )
    )  # fmt: skip
    group = layer.num_heads // layer.num_kv_heads
    seen = []
    for head in range(layer.num_heads):
        shared = head // group
        score = q[:, head] @ k[:, shared].transpose(-2, -1) / math.sqrt(layer.head_dim)
        score = score + (bias[..., head, :, :] if isinstance(bias, Tensor) else bias)
        if mask is not None:
            score = score.masked_fill(~mask, -math.inf)
        seen.append(score.softmax(-1) @ v[:, shared])
    out = torch.cat(seen, -1) @ layer.out_proj.weight.T
    return out + (layer.out_proj.bias if layer.out_proj.bias is not None else 0)


@torch.no_grad()
def copy_attention(theirs: nn.MultiheadAttention, ours: MultiHeadAttention) -> None:
    if theirs.in_proj_weight is not None:
        weights = theirs.in_proj_weight.chunk(3)
    else:
        weights = (theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight)
    linears = (ours.q_proj, ours.k_proj, ours.v_proj)
    for linear, weight in zip(linears, weights, strict=True):
        linear.weight.copy_(weight)
    if theirs.in_proj_bias is not None:
        for linear, bias in zip(linears, theirs.in_proj_bias.chunk(3), strict=True):
            linear.bias.copy_(bias)
    ours.out_proj.load_state_dict(theirs.out_proj.state_dict())


def copy_feed_forward(theirs: nn.Module, ours: FeedForward) -> None:
    ours.up.load_state_dict(theirs.linear1.state_dict())  # type: ignore[union-attr, operator]
    ours.down.load_state_dict(theirs.linear2.state_dict())  # type: ignore[union-attr, operator]
