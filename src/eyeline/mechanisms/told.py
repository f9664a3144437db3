"""What a mechanism that routes by content can tell of one call: causality, work and coverage."""

from __future__ import annotations

from torch import Tensor

from eyeline.functional.routed import coverage
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
    whole = query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2]
    found = coverage(query, key, route, pattern, q_tokens=q_tokens, k_tokens=k_tokens)
    lanes = f" in {route.lanes} orders" if route.lanes > 1 else ""
    return {
        "causality": causality,
        "blocks": f"{route.blocks:,} of {route.rows:,} × {route.columns:,}{lanes}",
        "pairs computed": f"{route.pairs:,} of {whole:,}, {route.pairs / max(whole, 1):.1%}",
        "queries that look at somebody": f"{found.queries:.1%}",
        "keys that are looked at": f"{found.keys:.1%}",
    }
