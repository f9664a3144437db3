"""How many pairs a pattern allows: an exact number, without visiting n² of them."""

from __future__ import annotations

from eyeline.patterns import Pattern
from eyeline.planning.palette import evaluate, palette
from eyeline.planning.planner import TILE, one_sequence
from eyeline.planning.refine import Tiling, refine
from eyeline.tokens import Tokens

# Tiles without a shared mask are evaluated this many entries at a time.
_BATCH = 1 << 22


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
    if not q_tokens.length or not k_tokens.length:
        return 0
    tiling = refine(pattern, q_tokens, k_tokens, tile=TILE, largest=TILE)
    masks = palette(pattern, q_tokens, k_tokens, tiling)
    known = int(masks.count[masks.code].sum())
    unknown = tiling.partial[masks.code == 0]
    for some in unknown.split(max(_BATCH // tiling.tile**2, 1)):
        known += int(evaluate(pattern, q_tokens, k_tokens, some, tiling.tile).sum())
    return known + _full_pairs(tiling, q_tokens.length, k_tokens.length)


def _full_pairs(tiling: Tiling, queries: int, keys: int) -> int:
    first, edge = tiling.full[:, :2], tiling.full[:, 2:]
    ends = ((first + edge) * tiling.tile).minimum(first.new_tensor([queries, keys]))
    sides = ends - first * tiling.tile
    return int((sides[:, 0] * sides[:, 1]).sum())
