"""torch's scaled_dot_product_attention, where it says the same thing as the pattern.

It knows "everything", "upper-left causal", and a dense mask. A pattern is matched by its
structure; a dense mask is built for short inputs only.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from eyeline.kernels.masks import visible
from eyeline.kernels.request import Request
from eyeline.patterns import Causal, Full
from eyeline.tokens import default_tokens

NAME = "sdpa"

# Up to this many pairs a dense mask is cheaper than a plan.
DENSE_LIMIT = 512 * 512


def refusal(request: Request) -> str | None:
    """Why SDPA cannot serve the request, or None."""
    if request.wants_lse:
        return "it does not return the log-sum-exp"
    pairs = request.query.shape[2] * request.key.shape[2]
    if _structure(request) is None and pairs > DENSE_LIMIT:
        return (
            f"it knows full, causal (L = S, positions 0, 1, 2, …) and dense masks, and a dense "
            f"mask of {pairs:,} pairs is more than {DENSE_LIMIT:,}"
        )
    return None


def run(request: Request) -> tuple[Tensor, None]:
    """output (B, H, L, Ev); no log-sum-exp."""
    structure = _structure(request)
    if structure is not None:
        # Keys are read again for every 256 queries: rows that lie together are read faster.
        close = replace(request, key=request.key.contiguous(), value=request.value.contiguous())
        return _call(close, None, causal=structure == "causal"), None
    mask, some = visible(request)
    out = _call(request, mask)
    return (out if some is None else out.masked_fill(~some, 0.0)), None


def _structure(request: Request) -> str | None:
    """ "full" or "causal" where SDPA's own notion equals the pattern's, else None."""
    queries, keys = request.query.shape[2], request.key.shape[2]
    default = default_tokens(queries, keys)
    if (request.q_tokens, request.k_tokens) != default or not keys:
        return None
    if request.pattern == Full():
        return "full"
    return "causal" if request.pattern == Causal() and queries == keys else None


def _call(request: Request, mask: Tensor | None, *, causal: bool = False) -> Tensor:
    return scaled_dot_product_attention(
        request.query, request.key, request.value,
        attn_mask=mask,
        is_causal=causal, scale=request.scale, enable_gqa=request.groups > 1,
    )  # fmt: skip
