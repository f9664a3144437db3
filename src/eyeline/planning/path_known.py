"""Longest paths that are known without a search: by what a relation is, or by a closed form."""

from __future__ import annotations

import torch

from eyeline.patterns import (
    And,
    Causal,
    Chunks,
    Dilated,
    FixedColumns,
    Full,
    Global,
    Not,
    Or,
    Pattern,
    SameDocument,
    Sinks,
    Strided,
    Window,
)
from eyeline.planning.pairs import pairs
from eyeline.planning.path_forms import ANYWHERE, FROM_ZERO, formula
from eyeline.tokens import NOBODY, Points, Tokens


def known_length(pattern: Pattern, tokens: Tokens) -> int | None:
    """The longest path if one of the forms applies, else None."""
    if tokens.length < 2:
        return 0
    if _transitive(pattern):
        # If i hears k and k hears j, i hears j: everything is heard in one layer.
        return int(_looks_away(pattern, tokens))
    if _has_hub(pattern, tokens):
        # Everybody hears the hub, and the hub everybody: two layers, or one if no pair needs it.
        return 1 + int(_looks_away(~pattern, tokens)) if _looks_away(pattern, tokens) else 0
    start = _start(tokens)
    if start is None:
        return None
    return formula(pattern, tokens.length, ANYWHERE + FROM_ZERO if start == 0 else ANYWHERE)


def _transitive(pattern: Pattern) -> bool:
    """Whether allows(i, k) and allows(k, j) surely imply allows(i, j)."""
    if _columns(pattern):
        return True
    if isinstance(pattern, And):
        return all(_transitive(member) for member in pattern.members)
    if isinstance(pattern, Or):
        # j <= k <= i or j in the prefix; k in the prefix takes j <= k along.
        return all(isinstance(member, (Causal, Sinks)) for member in pattern.members)
    if isinstance(pattern, (Window, Dilated, Chunks)):
        # Each of the two sides is an order, or an equality.
        return pattern.left in (0, None) and pattern.right in (0, None)
    strictly_later = isinstance(pattern, Not) and isinstance(pattern.inner, Causal)
    return strictly_later or isinstance(pattern, (Full, Causal, SameDocument, Strided))


def _columns(pattern: Pattern) -> bool:
    """Whether who looks does not matter: what a token hears is heard by all."""
    if isinstance(pattern, (And, Or)):
        return all(_columns(member) for member in pattern.members)
    if isinstance(pattern, Not):
        return _columns(pattern.inner)
    return isinstance(pattern, (Full, Sinks, FixedColumns))


def _has_hub(pattern: Pattern, tokens: Tokens) -> bool:
    """Whether some token looks at everybody, and is looked at by everybody."""
    members = pattern.members if isinstance(pattern, Or) else (pattern,)
    hubs = [member for member in members if isinstance(member, Global)]
    real = tokens.positions[tokens.positions != NOBODY]
    point = Points(real, torch.zeros_like(real))
    return any(bool(hub.allows(point, point).any()) for hub in hubs)


def _looks_away(pattern: Pattern, tokens: Tokens) -> bool:
    """Whether any token may look at another one than itself."""
    slot = torch.arange(tokens.length)
    # Most often a few tokens show it, and nothing is counted.
    few = slot[:: max(tokens.length // 64, 1)].unique()
    some = torch.cat([slot[:64], few]).unique()
    seen = pattern.sees(tokens.at(some[:, None]), tokens.at(some))
    if bool((seen & (some[:, None] != some)).any()):
        return True
    alone = int(pattern.sees(tokens.at(slot), tokens.at(slot)).sum())
    return pairs(pattern, q_tokens=tokens, k_tokens=tokens) > alone


def _start(tokens: Tokens) -> int | None:
    """The first position if tokens are one document at consecutive positions, else None."""
    documents, position = tokens.documents, tokens.positions
    if documents is not None and bool((documents != documents[0]).any()):
        return None
    first = int(position[0])
    consecutive = torch.equal(position, torch.arange(first, first + len(position)))
    return first if consecutive and first != NOBODY else None
