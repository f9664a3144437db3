"""What a mechanism that routes by content can tell of one call: causality, work and coverage."""

from __future__ import annotations

from torch import Tensor

from eyeline.functional.routed import Coverage, coverage
from eyeline.patterns import Pattern
from eyeline.routing import Route
from eyeline.tokens import Tokens


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
