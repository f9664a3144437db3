"""From the vectors of tokens to one vector for each text."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from eyeline.checks import wide_dtype
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.layers.checks import check_tokens
from eyeline.tokens import Tokens

Pooling = Literal["mean", "cls", "max"]
"""The mean of all real tokens, the first of them, or the largest of each feature."""


def pooled(hidden: Tensor, tokens: Tokens | None = None, how: Pooling = "mean") -> Tensor:
    """One vector for each row: hidden (B, L, width) → (B, width), of real tokens alone.

    "mean": (1 / n) Σ_i h_i, summed in float32 or wider. "cls": h of the first real token.
    "max": max_i h_i, feature by feature. tokens: who stands in the slots, somebody in each if not
    given; a row where nobody stands gets 0. Reimers and Gurevych 2019.

    Raises InvalidArgument for another word and other shapes, NotSupported for packed documents.
    """
    if how not in get_args(Pooling):
        raise InvalidArgument(f"how={how!r}: it is one of {', '.join(get_args(Pooling))}")
    if hidden.dim() != 3:
        raise InvalidArgument(f"hidden {tuple(hidden.shape)} must be (batch, length, width)")
    real = _real(hidden, tokens)
    if how == "cls":
        first = real & (real.cumsum(1) == 1)
        return hidden.masked_fill(~first, 0.0).sum(1).to(hidden.dtype)
    if how == "max":
        most = hidden.masked_fill(~real, -torch.inf).amax(1)
        return most.masked_fill(~real.any(1), 0.0)
    wide = wide_dtype(hidden)
    total = hidden.masked_fill(~real, 0.0).sum(1, dtype=wide)
    return (total / real.sum(1).clamp(min=1)).to(hidden.dtype)


def _real(hidden: Tensor, tokens: Tokens | None) -> Tensor:
    """Where somebody stands: (B, L, 1)."""
    batch, length, _ = hidden.shape
    if tokens is None:
        return torch.ones(batch, length, 1, dtype=torch.bool, device=hidden.device)
    check_tokens("tokens", tokens, batch, length)
    if tokens.documents is not None:
        raise NotSupported(
            "tokens hold packed documents, and a row has one vector: give each text its own row"
        )
    return (tokens.positions.to(hidden.device) >= 0).expand(batch, -1).unsqueeze(-1)
