"""How many pairs a pattern allows, and whether any of them lies ahead: exactly, without n² work."""

from __future__ import annotations

from torch import Tensor

from eyeline.budgets import at_once, budgets
from eyeline.errors import InvalidArgument
from eyeline.patterns import Causal, Pattern
from eyeline.patterns.ahead import never_looks_ahead
from eyeline.planning.dense import dense_mask, described, on_host, settled
from eyeline.planning.orders import arrange
from eyeline.planning.palette import evaluate, palette
from eyeline.planning.peeling import Rule, pattern_of, peel, rules
from eyeline.planning.planner import TILE, one_sequence
from eyeline.planning.refine import Tiling, finer, refine
from eyeline.tokens import Tokens, default_tokens

# Tiles without a shared mask are first split to this edge.
_SMALL = 8
# Most patterns that look ahead do so among the first tokens.
_FIRST = 256


def pairs(
    pattern: Pattern,
    length: int | None = None,
    key_length: int | None = None,
    *,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
) -> int:
    """|{(i, j) : i may look at j}| for one sequence and one head, exactly.

    Time is proportional to the tiles at the pattern's edges; for a Predicate, of which nothing
    is known, to L·S. Arguments and errors as for ``plan``.
    """
    q_tokens, k_tokens = one_sequence(pattern, length, key_length, q_tokens, k_tokens)
    return _counted(settled(pattern, q_tokens, k_tokens), q_tokens, k_tokens)


def looks_ahead(
    pattern: Pattern,
    length: int | None = None,
    *,
    tokens: Tokens | None = None,
    heads: int | None = None,
) -> bool:
    """Whether a token of a sequence may attend to one at a later position: ∃ allowed (i, j), j > i.

    length: tokens at 0 … length - 1; or tokens, in one row or several, that attend to each other.
    heads: for a pattern that differs per head; True if it looks ahead in any of them.
    Exact. Time is that of ``pairs``, and less where a pattern's structure or the first tokens
    tell. Raises InvalidArgument for a pattern that differs per batch row, or per head without
    heads, and what ``pairs`` refuses.
    """
    sequences = _sequences(pattern, length, tokens)
    return any(
        _looks_ahead(settled(rule, row, row), row)
        for rule in _every_head(pattern, heads)
        for row in sequences
    )


def pair_ahead(
    pattern: Pattern, length: int, *, heads: int | None = None
) -> tuple[int, int] | None:
    """Two positions i < j where i may attend to j; j is the least there is. None without any.

    Arguments and errors as for ``looks_ahead``, which it asks about log₂(length) lengths.
    """
    (tokens,) = _sequences(pattern, length, None)
    all_rules = [settled(rule, tokens, tokens) for rule in _every_head(pattern, heads)]
    ahead = [rule for rule in all_rules if _looks_ahead(rule, tokens)]
    if not ahead:
        return None
    low, high = 1, length  # none among the first ``low`` tokens, one among the first ``high``
    while high - low > 1:
        middle = (low + high) // 2
        prefix = default_tokens(middle, middle)[0]
        found = any(_looks_ahead(rule, prefix) for rule in ahead)
        low, high = (low, middle) if found else (middle, high)
    before, last = Tokens.arange(0, high - 1), Tokens.arange(high - 1, high)
    masks = [dense_mask(rule, q_tokens=before, k_tokens=last)[:, 0] for rule in ahead]
    return min(int(mask.nonzero()[0, 0]) for mask in masks if bool(mask.any())), high - 1


def _sequences(pattern: Pattern, length: int | None, tokens: Tokens | None) -> list[Tokens]:
    if (length is None) == (tokens is None):
        raise InvalidArgument("give a length, or tokens")
    if tokens is None:
        return [described(pattern, length, None, None, None)[0]]
    return [tokens] if tokens.batch is None else [tokens.row(b) for b in range(tokens.batch)]


def _every_head(pattern: Pattern, heads: int | None) -> list[Pattern]:
    if heads is None and "head" in pattern.varies_by:
        raise InvalidArgument(f"{pattern} differs per head: say for how many heads")
    return [rule for rule, _ in rules(pattern, heads if heads is not None else 1)]


def _looks_ahead(rule: Pattern, tokens: Tokens) -> bool:
    """Of a rule that holds in every head and at one length, for one sequence."""
    if never_looks_ahead(rule):
        return False
    ahead = rule & ~Causal()
    if tokens.length > _FIRST and _counted(ahead, *[_first(tokens, _FIRST)] * 2):
        return True
    return _counted(ahead, tokens, tokens) > 0


def _first(tokens: Tokens, count: int) -> Tokens:
    documents = None if tokens.documents is None else tokens.documents[:count]
    return Tokens(tokens.positions[:count], documents)


@on_host
def _counted(rule: Rule, q: Tokens, k: Tokens) -> int:
    if rule is False or not q.length or not k.length:
        return 0
    peeled = None if rule is True else peel(rule, q, k)
    arranged = None if peeled is None else arrange(peeled, q, k, TILE)
    if peeled is None or arranged is None:
        return _in_order(rule, q, k, TILE, 1)
    within = (_in_order(each.rule, *each[3:]) for each in arranged if each.rule is not False)
    return _counted(peeled.without, q, k) + sum(within)


def _in_order(rule: Rule, q: Tokens, k: Tokens, tile: int, modulus: int) -> int:
    pattern = pattern_of(rule)
    tiling = refine(pattern, q, k, tile=tile, largest=tile, modulus=modulus)
    masks = palette(pattern, q, k, tiling)
    known = int(masks.count[masks.code].sum())
    unknown = tiling.partial[masks.code == 0]
    for some in unknown.split(at_once(tiling.tile**2, budgets.split)):
        known += _one_by_one(pattern, q, k, some, tiling.tile, modulus)
    return known + _full_pairs(tiling, q.length, k.length)


def _one_by_one(
    pattern: Pattern, q: Tokens, k: Tokens, tiles: Tensor, tile: int, modulus: int
) -> int:
    """The pairs in tiles without a shared mask. Most of small blocks in them is none or all."""
    halvings = max((tile // _SMALL).bit_length() - 1, 0)
    inner = finer(pattern, q, k, tiles, tile=tile, halvings=halvings, modulus=modulus)
    count = _full_pairs(inner, q.length, k.length)
    for some in inner.partial.split(at_once(inner.tile**2, budgets.counted)):
        count += int(evaluate(pattern, q, k, some, inner.tile).count_nonzero())
    return count


def _full_pairs(tiling: Tiling, queries: int, keys: int) -> int:
    first, edge = tiling.full[:, :2], tiling.full[:, 2:]
    ends = ((first + edge) * tiling.tile).minimum(first.new_tensor([queries, keys]))
    sides = ends - first * tiling.tile
    return int((sides[:, 0] * sides[:, 1]).sum())
