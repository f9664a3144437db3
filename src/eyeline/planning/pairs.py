"""How many pairs a pattern allows: an exact number, without visiting n² of them."""

from __future__ import annotations

from torch import Tensor

from eyeline.patterns import Pattern
from eyeline.planning.dense import on_host, settled
from eyeline.planning.orders import arrange
from eyeline.planning.palette import evaluate, palette
from eyeline.planning.peeling import Rule, pattern_of, peel
from eyeline.planning.planner import TILE, one_sequence
from eyeline.planning.refine import Tiling, finer, refine
from eyeline.tokens import Tokens

# Tiles without a shared mask are evaluated this many entries at a time.
_BATCH = 1 << 22
# They are first split to this edge, tiles with so many entries in all at a time.
_SMALL = 8
_SPLIT = 1 << 26


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
    for some in unknown.split(max(_SPLIT // tiling.tile**2, 1)):
        known += _one_by_one(pattern, q, k, some, tiling.tile, modulus)
    return known + _full_pairs(tiling, q.length, k.length)


def _one_by_one(
    pattern: Pattern, q: Tokens, k: Tokens, tiles: Tensor, tile: int, modulus: int
) -> int:
    """The pairs in tiles without a shared mask. Most of small blocks in them is none or all."""
    halvings = max((tile // _SMALL).bit_length() - 1, 0)
    inner = finer(pattern, q, k, tiles, tile=tile, halvings=halvings, modulus=modulus)
    count = _full_pairs(inner, q.length, k.length)
    for some in inner.partial.split(max(_BATCH // inner.tile**2, 1)):
        count += int(evaluate(pattern, q, k, some, inner.tile).count_nonzero())
    return count


def _full_pairs(tiling: Tiling, queries: int, keys: int) -> int:
    first, edge = tiling.full[:, :2], tiling.full[:, 2:]
    ends = ((first + edge) * tiling.tile).minimum(first.new_tensor([queries, keys]))
    sides = ends - first * tiling.tile
    return int((sides[:, 0] * sides[:, 1]).sum())
