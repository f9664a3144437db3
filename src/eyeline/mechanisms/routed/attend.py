"""Attention along a route that was found in the content: exact for the pairs that it computes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument
from eyeline.exact.call import Call, PatternLike, check_call
from eyeline.kernels import routed
from eyeline.kernels.autograd import eager
from eyeline.kernels.route import Route
from eyeline.kernels.route_pieces import Routed
from eyeline.patterns import Full, Pattern
from eyeline.scores import Dropout
from eyeline.tokens import NOBODY, Tokens

# Attention along a route that was found in the content: exact for the pairs that meet there.


class Coverage(NamedTuple):
    """What share of the queries look at somebody, and of the keys are looked at, from 0 to 1.

    Shares of those slots where somebody stands, over all batch rows and query heads.
    """

    queries: float
    keys: float


def routed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    route: Route,
    pattern: PatternLike = Full(),
    *,
    scale: float | None = None,
    dropout_p: float = 0.0,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
) -> Tensor:
    """out[i] = Σ_j m_ij exp(s_ij) v_j / Σ_j m_ij exp(s_ij),  s_ij = scale · query[i]·key[j].

    m_ij is how often i and j meet on the route, if the pattern allows the pair, else 0; a query
    that meets nobody gets 0. Shapes, tokens and errors are those of ``attention``; the route has
    lanes for each batch row and query head. Work and memory are those of the route's blocks, and
    never L·S. First derivatives; the route has none. Dropout as in ``attention``.
    """
    return routed_attention_with_lse(
        query, key, value, route, pattern,
        scale=scale, dropout_p=dropout_p, q_tokens=q_tokens, k_tokens=k_tokens,
    )[0]  # fmt: skip


def routed_attention_with_lse(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    route: Route,
    pattern: PatternLike = Full(),
    *,
    scale: float | None = None,
    dropout_p: float = 0.0,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
) -> tuple[Tensor, Tensor]:
    """``routed_attention`` and lse[i] = log Σ_j m_ij exp(s_ij): (B, H, L, Ev) and (B, H, L)."""
    call = check_call(
        query, key, value, pattern,
        scale=scale, q_tokens=q_tokens, k_tokens=k_tokens, dropout_p=dropout_p,
    )  # fmt: skip
    return eager(lambda: _run(_work(call, route), call))


def coverage(
    query: Tensor,
    key: Tensor,
    route: Route,
    pattern: PatternLike = Full(),
    *,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
) -> Coverage:
    """How many the route reaches: of a mechanism that leaves nobody out both are 1."""
    call = check_call(query, key, key, pattern, scale=None, q_tokens=q_tokens, k_tokens=k_tokens)
    work = _work(call, route)
    looks, seen = routed.reached(work)
    return Coverage(*(_share(x, y) for x, y in ((looks, work.q_tokens), (seen, work.k_tokens))))


def _run(work: Routed, call: Call) -> tuple[Tensor, Tensor]:
    with torch.autocast(call.query.device.type, enabled=False):
        return routed.run(work, call.query, call.key, call.value)


def _work(call: Call, route: Route) -> Routed:
    batch, heads, queries, _ = call.query.shape
    keys = call.key.shape[2]
    if route.queries.shape[:2] != (batch, heads):
        raise InvalidArgument(f"{route.sizes} for {batch} rows of {heads} heads")
    for name, slots, length in (("query", route.queries, queries), ("key", route.keys, keys)):
        if slots.numel() and not -1 <= int(slots.min()) <= int(slots.max()) < length:
            raise InvalidArgument(f"{route.sizes}: {name} slots beyond the {length} there are")
    if not queries or not keys:  # nobody stands anywhere on it
        nobody = route.queries[..., :0]
        route = Route(nobody, nobody, 1, 1, 1)
    request = call.request()  # with a seed for dropout
    q, k = request.q_tokens, request.k_tokens
    dropout = next((step for step in request.steps if isinstance(step, Dropout)), None)
    return Routed(route, call.pattern, q, k, call.scale, request.groups, dropout)


def _share(reached: Tensor, tokens: Tokens) -> float:
    there = tokens.positions.to(reached.device) != NOBODY
    there = there.expand(reached.shape[0], -1).unsqueeze(1).expand_as(reached)
    return float((reached & there).sum() / there.sum().clamp(min=1))


def told(
    causality: str,
    route: Route,
    query: Tensor,
    key: Tensor,
    pattern: Pattern,
    *,
    q_tokens: Tokens | None,
    k_tokens: Tokens | None,
) -> dict[str, str]:
    """In words. causality: what is promised, and why no more. Queries (B, H, L, E)."""
    found = coverage(query, key, route, pattern, q_tokens=q_tokens, k_tokens=k_tokens)
    lanes = f" in {route.lanes} orders" if route.lanes > 1 else ""
    blocks = f"{route.blocks:,} of {route.rows:,} × {route.columns:,}{lanes}"
    whole = query.shape[:3].numel() * key.shape[2]
    return in_words(causality, blocks, route.pairs if whole else 0, whole, found)


def in_words(
    causality: str, blocks: str, pairs: int, whole: int, reached: Coverage
) -> dict[str, str]:
    """What is told of any such call. pairs: how many of ``whole`` are computed."""
    return {
        "causality": causality,
        "blocks": blocks,
        "pairs computed": f"{pairs:,} of {whole:,}, {pairs / max(whole, 1):.1%}",
        "queries that look at somebody": f"{reached.queries:.1%}",
        "keys that are looked at": f"{reached.keys:.1%}",
    }
