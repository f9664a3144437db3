"""Dense masks of whole requests, remembered for the layers that ask the same question again."""

from __future__ import annotations

import torch
from torch import Tensor

from eyeline.kernels.request import Request
from eyeline.patterns import Pattern
from eyeline.patterns.remember import remember
from eyeline.planning import dense_mask
from eyeline.tokens import Tokens


def mask_of(request: Request) -> Tensor:
    """Who may look at whom, bool, in a shape that broadcasts to (B, H, L, S)."""
    return _dense(*_key(request))


def visible(request: Request) -> tuple[Tensor | None, Tensor | None]:
    """A mask for a kernel that cannot serve empty rows, and the rows that see somebody.

    The mask is None where everything is visible; in it, an empty row looks at everybody. The
    second is bool (…, L, 1), or None where no row is empty: take the other rows out afterwards.
    """
    return _visible(*_key(request))


_Key = tuple[Pattern, Tokens, Tokens, int, int, torch.device]


def _key(request: Request) -> _Key:
    varies = bool(request.pattern.varies_by - {"length"})
    batch, heads = request.query.shape[:2] if varies else (0, 0)
    tokens = request.q_tokens, request.k_tokens
    return (request.pattern, *tokens, batch, heads, request.query.device)


@remember(maxsize=16)
def _dense(
    pattern: Pattern, q: Tokens, k: Tokens, batch: int, heads: int, device: torch.device
) -> Tensor:
    if batch and heads:
        return dense_mask(pattern, q_tokens=q, k_tokens=k, batch=batch, heads=heads).to(device)
    mask = dense_mask(pattern, q_tokens=q, k_tokens=k).to(device)
    return mask.unsqueeze(1) if mask.dim() == 3 else mask


@remember(maxsize=16)
def _visible(
    pattern: Pattern, q: Tokens, k: Tokens, batch: int, heads: int, device: torch.device
) -> tuple[Tensor | None, Tensor | None]:
    mask = _dense(pattern, q, k, batch, heads, device)
    if bool(mask.all()):
        return None, None
    some = mask.any(-1, keepdim=True)
    return (mask, None) if bool(some.all()) else (mask | ~some, some)
