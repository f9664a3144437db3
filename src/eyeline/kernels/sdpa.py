"""torch's scaled_dot_product_attention, where it says the same thing as the pattern.

It knows "everything", "upper-left causal", and a dense mask. A pattern is matched by its
structure; a dense mask is built for short inputs only.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from eyeline.kernels.request import Request, additive
from eyeline.patterns import Causal, Full
from eyeline.tokens import default_tokens

NAME = "sdpa"

# Up to this many pairs a dense mask is cheaper than a plan.
DENSE_LIMIT = 512 * 512


def refusal(request: Request) -> str | None:
    """Why SDPA cannot serve the request, or None."""
    if request.wants_lse:
        return "it does not return the log-sum-exp"
    if not request.is_additive:
        return "it can only add numbers to scores"
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
        tensors = request.query, request.key, request.value
        return structured(*tensors, request.scale, causal=structure == "causal"), None
    mask, some = additive(request)
    out = scaled_dot_product_attention(
        request.query, request.key, request.value,
        attn_mask=mask, scale=request.scale, enable_gqa=request.groups > 1,
    )  # fmt: skip
    return (out if some is None else out.masked_fill(~some, 0.0)), None


def structured(query: Tensor, key: Tensor, value: Tensor, scale: float, *, causal: bool) -> Tensor:
    """The output where all is seen, or all but the future, for as many queries as keys."""
    # Keys are read again for every 256 queries: rows that lie together are read faster.
    return scaled_dot_product_attention(
        query, key.contiguous(), value.contiguous(),
        is_causal=causal, scale=scale, enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip


def _structure(request: Request) -> str | None:
    """ "full" or "causal" where SDPA's own notion equals the pattern's, else None."""
    queries, keys = request.query.shape[2], request.key.shape[2]
    default = default_tokens(queries, keys)
    if (request.q_tokens, request.k_tokens) != default or not keys or request.steps:
        return None
    if request.pattern == Full():
        return "full"
    return "causal" if request.pattern == Causal() and queries == keys else None
