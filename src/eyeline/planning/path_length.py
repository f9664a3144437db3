"""How many layers it takes until everybody has heard of everybody they ever can."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from eyeline.errors import InvalidArgument, NotSupported
from eyeline.patterns import And, Or, Pattern, SameDocument
from eyeline.planning.bitsets import depth, packed
from eyeline.planning.dense import described, settled
from eyeline.planning.heads import rules
from eyeline.planning.host import on_host
from eyeline.planning.path_known import known_length
from eyeline.tokens import Tokens

LONGEST_SEARCH = 4096
"""The longest sequence that is searched; it takes n²/8 bytes for each doubling of the answer."""

_ROWS = 256


@runtime_checkable
class HasPath(Protocol):
    """A mechanism or layer that knows the longest path of layers that are all like it."""

    def path(self, length: int) -> int:
        """max over i, j of dist(i, j)."""


def max_path_length(
    pattern: Pattern | nn.Module,
    length: int | None = None,
    *,
    tokens: Tokens | None = None,
    heads: int | None = None,
) -> int:
    """max over i, j of dist(i, j), the layers after which i has heard of j; exact.

    Layers of one pattern stand on each other, and residual connections let a token keep what it
    has. So dist(i, i) = 0, and dist(i, j) is the number of edges on the shortest path i → … → j
    where a step leads from a token to one that it may look at. Pairs that no number of layers
    connects are left out: the answer is the least number after which nothing new is heard by
    anyone. Vaswani et al. 2017, table 1, "maximum path length", for any pattern.

    length: n, for tokens at 0 … n - 1; or tokens: one sequence, for documents, pads and gaps.
    heads: for patterns that differ per head. A layer connects two tokens if any head does.

    pattern: also a mechanism or a layer, whose tokens hear each other as it makes them; for one
    with neither a pattern nor a path of its own NotSupported is raised.

    Full and causal: 1. A window of l neighbours: ⌈(n - 1) / l⌉. With global tokens: 2. Where a
    formula is proved it is used, at any length; else all paths are searched at once with
    sets of bits, in seconds, up to 4,096 tokens.

    Raises NotSupported for a longer sequence without a formula, and InvalidArgument for a
    pattern that differs per head without ``heads``, or per batch row.
    """
    if not isinstance(pattern, Pattern):
        found = _of_module(pattern, length, tokens)
        if isinstance(found, int):
            return found
        pattern = found
    tokens = _sequence(pattern, length, tokens)
    rule = settled(_united(pattern, heads), tokens, tokens)
    if not tokens.length:
        return 0
    return _longest(rule, tokens)


def _of_module(module: nn.Module, length: int | None, tokens: Tokens | None) -> int | Pattern:
    """The path of a layer's mechanism, or the pattern that says it."""
    looking = getattr(module, "mechanism", module)
    if isinstance(looking, HasPath):
        if length is None or tokens is not None:
            raise InvalidArgument("the longest path of a mechanism or layer is that of a length")
        return looking.path(length)
    if hasattr(looking, "route"):
        raise NotSupported(
            f"{type(looking).__name__} chooses who looks at whom by content: how far that reaches "
            "is not known before"
        )
    pattern = getattr(looking, "pattern", None)
    if not isinstance(pattern, Pattern):
        raise NotSupported(f"{type(looking).__name__} has neither a pattern nor a path")
    return pattern


def _sequence(pattern: Pattern, length: int | None, tokens: Tokens | None) -> Tokens:
    if tokens is None:
        return described(pattern, length, None, None, None)[0]
    if length is not None:
        raise InvalidArgument("give a length or tokens, not both")
    if tokens.batch is not None:
        raise InvalidArgument("paths run within one sequence: choose one with tokens.row(b)")
    return tokens.host


def _united(pattern: Pattern, heads: int | None) -> Pattern:
    """The pattern that allows what some head allows."""
    if heads is None and "head" in pattern.varies_by:
        raise InvalidArgument(
            f"{pattern} differs per head: say how many heads a layer has, for example heads=8, "
            "or choose one with pattern.at(batch, head)"
        )
    each = [rule for rule, _ in rules(pattern, heads if heads is not None else 1)]
    return Or.of(*each) if len(each) > 1 else each[0]


@on_host
def _longest(pattern: Pattern, tokens: Tokens) -> int:
    known = known_length(pattern, tokens)
    if known is not None:
        return known
    parts = _apart(pattern, tokens)
    if len(parts) > 1:
        return max(_longest(pattern, part) for part in parts)
    if tokens.length > LONGEST_SEARCH:
        raise NotSupported(
            f"the longest path of {pattern} over {tokens.length:,} tokens: no formula is proved "
            f"for it, and paths are searched up to {LONGEST_SEARCH:,} tokens; ask for a shorter "
            f"sequence, such as max_path_length(pattern, {LONGEST_SEARCH})"
        )
    return depth(_edges(pattern, tokens))


def _apart(pattern: Pattern, tokens: Tokens) -> list[Tokens]:
    """The documents of the sequence if no path leads from one to another, else the whole."""
    documents = tokens.documents
    if documents is None or not isinstance(pattern, And):
        return [tokens]
    if not any(isinstance(member, SameDocument) for member in pattern.members):
        return [tokens]
    order = documents.argsort(stable=True)
    sizes = documents.unique(return_counts=True)[1].tolist()
    return [Tokens(tokens.positions[s], documents[s]) for s in order.split(sizes)]


def _edges(pattern: Pattern, tokens: Tokens) -> Tensor:
    """Whom each token hears after one layer, itself included, as bits: (n, bytes)."""
    keys, rows = tokens.points(axis=-1), []
    for slots in torch.arange(tokens.length).split(_ROWS):
        heard = pattern.sees(tokens.at(slots[:, None]), keys).clone()
        heard[torch.arange(len(slots)), slots] = True
        rows.append(packed(heard))
    return torch.cat(rows)
