"""The pattern as one bool matrix, for small inputs, tests and pictures."""

from __future__ import annotations

import torch
from torch import Tensor

from eyeline.patterns import Pattern
from eyeline.tokens import NOBODY, Tokens, default_tokens


def dense_mask(
    pattern: Pattern,
    length: int | None = None,
    key_length: int | None = None,
    *,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
    batch: int | None = None,
    heads: int | None = None,
) -> Tensor:
    """mask[i, j] = i may look at j, nobody excluded: bool (L, S), or (B, L, S) for batched tokens.

    batch, heads: for patterns that differ per batch row or head; the mask is then (B, H, L, S).
    Memory is L·S: this is the definition made visible, not what kernels use.
    """
    if q_tokens is None or k_tokens is None:
        length = length if length is not None else 0
        key_length = key_length if key_length is not None else length
        q_tokens, k_tokens = default_tokens(length, key_length)
    if batch is not None or heads is not None:
        return _per_head(pattern, q_tokens, k_tokens, batch or 1, heads or 1)
    q, k = q_tokens.points(axis=-2), k_tokens.points(axis=-1)
    return pattern.allows(q, k) & (q.position != NOBODY) & (k.position != NOBODY)


def _per_head(pattern: Pattern, q: Tokens, k: Tokens, batch: int, heads: int) -> Tensor:
    rows = [
        torch.stack(
            [
                dense_mask(pattern.at(b, h), q_tokens=q.row(b), k_tokens=k.row(b))
                for h in range(heads)
            ]
        )
        for b in range(batch)
    ]
    return torch.stack(rows)
