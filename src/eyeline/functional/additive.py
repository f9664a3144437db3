"""Additive attention: a small network scores each pair of a query and a key."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from eyeline.errors import InvalidArgument
from eyeline.exact.call import PatternLike, make_request
from eyeline.kernels.request import Request, mask_of
from eyeline.patterns import Full
from eyeline.tokens import Tokens

# What the hidden units of some queries take at once, in bytes.
_BUDGET = 32 << 20


def additive_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: PatternLike = Full(),
    *,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    dropout_p: float = 0.0,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
) -> Tensor:
    """out[i] = Σ_j softmax_j(w_vᵀ tanh(W_q query[i] + W_k key[j])) · value[j].

    query: (B, H, L, Eq); key: (B, Hk, S, Ek), which may differ in width; value: (B, Hk, S, Ev).
    w_q: (hidden, Eq), w_k: (hidden, Ek), w_v: (hidden,), for all heads alike, or with one more
    dimension H in front, each head its own. Returns (B, H, L, Ev). pattern, tokens and queries
    that may look at nobody are as in ``attention``; dropout_p is that of weights.

    Every pair has hidden units of its own, so time is L·S·hidden whatever the pattern; they are
    computed for some queries at a time, forward and backward, and memory is L·S and theirs.

    Raises InvalidArgument for sizes, dtypes or tokens that do not fit together.
    Bahdanau et al. 2015, "Neural machine translation by jointly learning to align and translate".
    """
    dtype = _dtype(value)
    weights = AdditiveWeights(w_q, w_k, w_v)
    with torch.autocast(query.device.type, enabled=False):
        request = _request(query, key, value, pattern, weights, dropout_p, q_tokens, k_tokens)
        return _by_queries(request, _wide(w_v), dropout_p).to(dtype)


def additive_attention_weights(
    query: Tensor,
    key: Tensor,
    pattern: PatternLike = Full(),
    *,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
) -> Tensor:
    """weight[i, j] = softmax_j(w_vᵀ tanh(W_q query[i] + W_k key[j])): (B, H, L, S).

    Exactly 0 where i may not look at j; each row sums to 1, or to 0 for a query that may look at
    nobody. In the dtype of the query. Arguments and errors are those of ``additive_attention``.
    """
    dtype = _dtype(query)
    weights = AdditiveWeights(w_q, w_k, w_v)
    with torch.autocast(query.device.type, enabled=False):
        request = _request(query, key, key, pattern, weights, 0.0, q_tokens, k_tokens)
        return _weights(request.query, request.key, _wide(w_v), mask_of(request)).to(dtype)


class AdditiveWeights(NamedTuple):
    """W_q (…, hidden, Eq), W_k (…, hidden, Ek) and w_v (…, hidden); … is nothing, or the heads."""

    q: Tensor
    k: Tensor
    v: Tensor


def _request(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: PatternLike,
    weights: AdditiveWeights,
    dropout_p: float,
    q_tokens: Tokens | None,
    k_tokens: Tokens | None,
) -> Request:
    """A request with W_q query and W_k key in place of queries and keys, all in float32 or wider.

    Two such rows meet in tanh, not in a product; but sizes, pattern and tokens are checked alike.
    """
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.dim() != 4:
            raise InvalidArgument(f"{name} {tuple(x.shape)} must be (batch, heads, length, width)")
    heads, shared = query.shape[1], key.shape[1]
    _check_weights(weights, heads, query.shape[3], key.shape[3])
    if shared and heads > shared and heads % shared == 0:
        key, value = (x.repeat_interleave(heads // shared, dim=1) for x in (key, value))
    return make_request(
        _wide(query) @ _wide(weights.q).transpose(-2, -1),
        _wide(key) @ _wide(weights.k).transpose(-2, -1),
        _wide(value),
        pattern,
        scale=1.0,
        dropout_p=dropout_p,
        q_tokens=q_tokens,
        k_tokens=k_tokens,
    )


def _check_weights(weights: AdditiveWeights, heads: int, q_width: int, k_width: int) -> None:
    hidden = weights.v.shape[-1] if weights.v.dim() else 0
    wanted = {"w_q": (hidden, q_width), "w_k": (hidden, k_width), "w_v": (hidden,)}
    for (name, shape), x in zip(wanted.items(), weights, strict=True):
        if tuple(x.shape) not in (shape, (heads, *shape)):
            raise InvalidArgument(
                f"{name} {tuple(x.shape)}: with w_v {tuple(weights.v.shape)} and widths "
                f"{q_width} and {k_width} it is {shape}, or {(heads, *shape)} for {heads} heads"
            )


def _by_queries(request: Request, w_v: Tensor, dropout_p: float) -> Tensor:
    """Some queries at a time; their hidden units are computed again in the backward pass."""
    query, key, value = request.query, request.key, request.value
    batch, heads, length, hidden = query.shape
    mask = mask_of(request)
    row = batch * heads * key.shape[2] * hidden * query.element_size()
    step = max(_BUDGET // max(row, 1), 1)
    if step >= length:
        return _rows(query, key, value, w_v, mask, dropout_p)
    pieces = []
    for start in range(0, length, step):
        end = start + step
        inputs = query[:, :, start:end], key, value, w_v, mask[..., start:end, :], dropout_p
        # Dropout is drawn again alike: checkpoint keeps the state of torch's generator.
        pieces.append(checkpoint(_rows, *inputs, use_reentrant=False))
    return torch.cat(pieces, 2)


def _rows(
    query: Tensor, key: Tensor, value: Tensor, w_v: Tensor, mask: Tensor, dropout_p: float
) -> Tensor:
    weight = _weights(query, key, w_v, mask)
    return functional.dropout(weight, dropout_p, training=dropout_p > 0) @ value


def _weights(query: Tensor, key: Tensor, w_v: Tensor, mask: Tensor) -> Tensor:
    """(B, H, R, hidden) and (B, H, S, hidden) to (B, H, R, S)."""
    units = (query.unsqueeze(3) + key.unsqueeze(2)).tanh()
    each = w_v if w_v.dim() == 1 else w_v[:, None, :, None]
    score = units @ each if w_v.dim() == 1 else (units @ each).squeeze(-1)
    # An empty row is given real scores first, so that no derivative meets inf - inf.
    some = mask.any(-1, keepdim=True)
    score = score.masked_fill(~(mask | ~some), -torch.inf)
    return score.softmax(-1).masked_fill(~mask, 0.0)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _dtype(x: Tensor) -> torch.dtype:
    """The dtype of the result: autocast's where it is enabled."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
