"""Attention to the keys whose weight reaches a threshold, in linear memory."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from eyeline.errors import InvalidArgument
from eyeline.exact.call import PatternLike
from eyeline.functional.picked import picked
from eyeline.functional.routed import routed_attention
from eyeline.patterns import Full
from eyeline.routing import Route
from eyeline.routing.best import weighty
from eyeline.tokens import Tokens


def threshold_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    t: float,
    pattern: PatternLike = Full(),
    *,
    scale: float | None = None,
    dropout_p: float = 0.0,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
) -> Tensor:
    """out[i] = Σ_j p_ij v_j / Σ_j p_ij over the j with p_ij ≥ t, p_i = softmax_j(scale · q_i·k_j).

    The softmax is over all keys that the pattern allows and, where tokens name documents, that
    are of the query's document. Where no weight reaches t, the weightiest key alone is taken, of
    equal ones that of the first slot. At most 1/t keys are looked at. As t goes to 0 this becomes
    ``attention``.

    query (B, H, L, E), key (B, Hk, S, E), value (B, Hk, S, Ev) to (B, H, L, Ev); options, tokens
    and errors are those of ``attention``. All allowed scores are computed, in float32 or wider,
    and none is kept: memory is that of the pairs that reach t. Gradients are those of these
    pairs. First derivatives. Raises InvalidArgument unless 0 < t < 1.
    """
    route = threshold_route(
        query, key, t, pattern, scale=scale, q_tokens=q_tokens, k_tokens=k_tokens
    )
    return routed_attention(
        query, key, value, route, pattern,
        scale=scale, dropout_p=dropout_p, q_tokens=q_tokens, k_tokens=k_tokens,
    )  # fmt: skip


def threshold_route(
    query: Tensor,
    key: Tensor,
    t: float,
    pattern: PatternLike = Full(),
    *,
    scale: float | None = None,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
) -> Route:
    """Whom each query of ``threshold_attention`` looks at, in blocks of at most 16 keys."""
    t = check_threshold(t)
    pick = partial(weighty, t=t)
    return picked(pick, query, key, pattern, scale=scale, q_tokens=q_tokens, k_tokens=k_tokens)


def check_threshold(t: float) -> float:
    """t as a float. Raises InvalidArgument unless it is a number between 0 and 1."""
    if isinstance(t, bool) or not isinstance(t, (int, float)) or not 0.0 < t < 1.0:
        raise InvalidArgument(f"threshold t={t!r}: a weight above 0 and below 1")
    return float(t)
