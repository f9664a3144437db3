"""How many layers it takes until every token has heard of all it ever can."""

from __future__ import annotations

from operator import itemgetter

import torch
from torch import Tensor

from eyeline.budgets import budgets
from eyeline.checks import check_size
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.patterns import (
    And,
    Causal,
    Chunks,
    Dilated,
    DocumentsApart,
    FixedColumns,
    Full,
    Global,
    Not,
    Or,
    Pattern,
    SameSegment,
    Sinks,
    Strided,
    Window,
)
from eyeline.planning.cost import Countable
from eyeline.planning.dense import described, on_host, settled
from eyeline.planning.pairs import pairs
from eyeline.planning.path_forms import ANYWHERE, FROM_ZERO, formula
from eyeline.planning.peeling import rules
from eyeline.tokens import NOBODY, Points, Tokens

# Sets of tokens as bits, one row a set: products of boolean matrices, 64 pairs at a time.

_BYTE = 8
_WORD = 64
# Where fewer than one row in this many selects something, the others are left out.
_FEW = 4


def packed(rows: Tensor) -> Tensor:
    """bool (n, m) as uint8 (n, 8·⌈m / 64⌉): column 8g + b is bit b of byte g."""
    rows = torch.nn.functional.pad(rows, (0, -rows.shape[1] % _WORD))
    weights = torch.tensor([1 << bit for bit in range(_BYTE)], dtype=torch.uint8)
    bits = rows.view(torch.uint8).unflatten(1, (-1, _BYTE))
    found: Tensor = (bits * weights).sum(2, dtype=torch.uint8)
    return found


def product(chosen: Tensor, sets: Tensor) -> Tensor:
    """union[i] = the union of sets[j] over all j in chosen[i].

    chosen (m, bytes), sets (n, bytes'): packed. Eight sets at a time: the unions of all their 256
    selections are made once and then looked up, so that the work is m·n²/512 words. Arlazarov et
    al. 1970, "On economical construction of the transitive closure of a directed graph".
    """
    words = sets.view(torch.int64)
    union = words.new_zeros(len(chosen), words.shape[1])
    found = torch.empty_like(union)
    for eight, selection in zip(words.split(_BYTE), chosen.t().contiguous(), strict=False):
        rows = selection.nonzero()[:, 0]
        if len(rows) * _FEW < len(union):
            union[rows] |= _selections(eight)[selection[rows].int()]
            continue
        torch.index_select(_selections(eight), 0, selection.int(), out=found)
        union |= found
    return union.view(torch.uint8)


def depth(edges: Tensor) -> int:
    """The least d at which the d-th power of a relation has become its closure.

    edges: packed (n, bytes), every token in its own set. The power is doubled until it stays the
    same, and d is then found bit by bit: 2·log₂ d products in all.
    """
    powers = [edges]
    while not torch.equal(squared := product(powers[-1], powers[-1]), powers[-1]):
        powers.append(squared)
    if len(powers) == 1:
        return int(not torch.equal(edges, packed(torch.eye(len(edges), dtype=torch.bool))))
    *powers, closure = powers
    *powers, reached = powers
    passed = 1 << len(powers)
    for exponent in reversed(range(len(powers))):
        further = product(powers[exponent], reached)
        if not torch.equal(further, closure):
            reached, passed = further, passed + (1 << exponent)
    return passed + 1


def _selections(sets: Tensor) -> Tensor:
    """unions[s] = the union of those sets whose bit is in s: (2^n, words) from (n, words)."""
    unions = sets.new_zeros(1 << len(sets), sets.shape[1])
    for bit, row in enumerate(sets):
        torch.bitwise_or(unions[: 1 << bit], row, out=unions[1 << bit : 2 << bit])
    return unions


# The longest path of a stack of convolutions whose gaps grow from layer to layer.


def dilated_path(left: int, right: int, length: int) -> int:
    """⌈log_b n⌉ layers, b = 1 + the narrower way that is open, with gaps 1, b, b², ….

    A layer with gap g lets token i hear i - l·g and i + r·g for l ≤ left and r ≤ right. A distance
    below b^m has m digits below b, each one hop of one layer, all in one direction: so no hop
    leaves the sequence, and m layers are enough where b^m ≥ n. They are needed: the widest reach
    of m layers by the narrower way is (b - 1)(1 + b + … + b^(m-1)) = b^m - 1. Ways of 0 are shut.

    Raises InvalidArgument for negative widths and lengths. van den Oord et al. 2016 (WaveNet).
    """
    for name, size in (("left", left), ("right", right), ("length", length)):
        check_size(name, size, least=0)
    narrow = min((way for way in (left, right) if way > 0), default=0)
    layers, reached = 0, 1
    while narrow and reached < length:
        layers, reached = layers + 1, reached * (narrow + 1)
    return layers


# Longest paths that are known without a search: by what a relation is, or by a closed form.


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
    alike = (Full, Causal, DocumentsApart, SameSegment, Strided)
    return strictly_later or isinstance(pattern, alike)


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
    point = Points.of(real)
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
    if tokens.segments is not None:
        return None
    first = int(position[0])
    consecutive = torch.equal(position, torch.arange(first, first + len(position)))
    return first if consecutive and first != NOBODY else None


LONGEST_SEARCH = 4096
"""The longest sequence that is searched; it takes n²/8 bytes for each doubling of the answer."""


def max_path_length(
    pattern: Pattern | Countable,
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

    pattern: also a Mechanism or a layer, whose tokens hear each other as it makes them; for one
    with neither a pattern nor a path of its own NotSupported is raised.

    Full and causal: 1. A window of l neighbours: ⌈(n - 1) / l⌉. With global tokens: 2. Where a
    formula is proved it is used, at any length; else all paths are searched at once with
    sets of bits, in seconds, up to 4,096 tokens.

    Raises NotSupported for a longer sequence without a formula, and InvalidArgument for a
    pattern that differs per head without ``heads``, or per batch row.
    """
    if not isinstance(pattern, Pattern):
        path = _of_module(pattern, length, tokens)
        if isinstance(path, int):
            return path
        pattern = path
    tokens = _sequence(pattern, length, tokens)
    rule = settled(_united(pattern, heads), tokens, tokens)
    if not tokens.length:
        return 0
    return _longest(rule, tokens)


def _of_module(module: Countable, length: int | None, tokens: Tokens | None) -> int | Pattern:
    """The path of a mechanism or a layer, or the pattern that says it."""
    if not isinstance(module, Countable):
        raise InvalidArgument(f"{type(module).__name__} is no Pattern, Mechanism or layer")
    slots = tokens.length if tokens is not None else length if length is not None else 0
    path = module.path(slots)
    if isinstance(path, int) and (length is None or tokens is not None):
        raise InvalidArgument("the longest path of a mechanism or layer is that of a length")
    return path


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
    parts = _apart(tokens)
    if len(parts) > 1:
        return max(_longest(pattern, part) for part in parts)
    if tokens.length > LONGEST_SEARCH:
        raise NotSupported(
            f"the longest path of {pattern} over {tokens.length:,} tokens: no formula is proved "
            f"for it, and paths are searched up to {LONGEST_SEARCH:,} tokens; ask for a shorter "
            f"sequence, such as max_path_length(pattern, {LONGEST_SEARCH})"
        )
    return depth(_edges(pattern, tokens))


def _apart(tokens: Tokens) -> list[Tokens]:
    """The documents of the sequence: no path leads from one to another."""
    documents = tokens.documents
    if documents is None:
        return [tokens]
    order = documents.argsort(stable=True)
    sizes = documents.unique(return_counts=True)[1].tolist()
    return [tokens.mapped(itemgetter(slots)) for slots in order.split(sizes)]


def _edges(pattern: Pattern, tokens: Tokens) -> Tensor:
    """Whom each token hears after one layer, itself included, as bits: (n, bytes)."""
    keys, rows = tokens.points(axis=-1), []
    for slots in torch.arange(tokens.length).split(budgets.path_rows):
        heard = pattern.sees(tokens.at(slots[:, None]), keys).clone()
        heard[torch.arange(len(slots)), slots] = True
        rows.append(packed(heard))
    return torch.cat(rows)
