"""A few new queries over many kept keys: no plan, one call, grouped heads as rows of it."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from eyeline.kernels.request import Request, additive

NAME = "decode"

# More new queries than this are planned.
MOST_QUERIES = 8


def refusal(request: Request) -> str | None:
    """Why this kernel cannot serve the request, or None."""
    if request.wants_lse:
        return "it does not return the log-sum-exp"
    if not request.is_additive:
        return "it can only add numbers to scores"
    queries = request.query.shape[2]
    if queries > MOST_QUERIES:
        return f"it is for at most {MOST_QUERIES} queries, there are {queries}"
    if not request.key.shape[2]:
        return "there is no key"
    return None


def run(request: Request) -> tuple[Tensor, None]:
    """output (B, H, L, Ev); no log-sum-exp."""
    query, groups = request.query, request.groups
    mask, some = additive(request)
    batch, heads, length, _ = query.shape
    if groups == 1:
        out = scaled_dot_product_attention(
            query, request.key, request.value, attn_mask=mask, scale=request.scale
        )
    else:
        rows = query.reshape(batch, heads // groups, groups * length, query.shape[3])
        out = scaled_dot_product_attention(
            rows, request.key, request.value, attn_mask=_in_rows(mask, request), scale=request.scale
        ).view(batch, heads, length, request.value.shape[3])
    return (out if some is None else out.masked_fill(~some, 0.0)), None


def _in_rows(mask: Tensor | None, request: Request) -> Tensor | None:
    """The mask of (B, H, L, S) for the rows (B, Hk, H/Hk·L, S)."""
    if mask is None or (mask.dim() == 2 and mask.shape[0] == 1):
        return mask
    _, heads, length, _ = request.query.shape
    keys, groups = mask.shape[-1], request.groups
    rows = mask.shape[0] if mask.dim() == 4 else 1
    full = mask.broadcast_to(rows, heads, length, keys)
    return full.reshape(rows, heads // groups, groups * length, keys)
