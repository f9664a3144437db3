"""Attention to the k best keys of each query, exactly, in linear memory."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from eyeline.checks import check_size
from eyeline.exact.call import PatternLike
from eyeline.functional.picked import picked
from eyeline.functional.routed import routed_attention
from eyeline.patterns import Full
from eyeline.routing import Route
from eyeline.routing.best import best
from eyeline.tokens import Tokens


def topk_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    k: int,
    pattern: PatternLike = Full(),
    *,
    scale: float | None = None,
    dropout_p: float = 0.0,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
) -> Tensor:
    """out[i] = Σ_j softmax_j(s_ij) v_j over the k keys of greatest s_ij = scale · query[i]·key[j].

    They are picked among those that the pattern allows and, where tokens name documents, that are
    of the query's document; fewer where fewer are. With k ≥ S it is ``attention`` over these. Of
    scores that are equal to the last bit, those of the first slots are picked; scores that are
    equal but for rounding may be picked either way.

    query (B, H, L, E), key (B, Hk, S, E), value (B, Hk, S, Ev) to (B, H, L, Ev); options, tokens
    and errors are those of ``attention``. All allowed scores are computed, in float32 or wider,
    and none is kept: memory is H·L·k. Gradients are those of the picked pairs, since what is
    picked changes in jumps. First derivatives. Raises InvalidArgument for k below 1. Gupta et al.
    2021, "Memory-efficient Transformers via Top-k Attention".
    """
    route = topk_route(query, key, k, pattern, scale=scale, q_tokens=q_tokens, k_tokens=k_tokens)
    return routed_attention(
        query, key, value, route, pattern,
        scale=scale, dropout_p=dropout_p, q_tokens=q_tokens, k_tokens=k_tokens,
    )  # fmt: skip


def topk_route(
    query: Tensor,
    key: Tensor,
    k: int,
    pattern: PatternLike = Full(),
    *,
    scale: float | None = None,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
) -> Route:
    """Whom each query of ``topk_attention`` looks at: blocks of one query and min(k, S) keys."""
    check_size("topk k", k)
    pick = partial(best, k=k)
    return picked(pick, query, key, pattern, scale=scale, q_tokens=q_tokens, k_tokens=k_tokens)
