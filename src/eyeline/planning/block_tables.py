"""Which blocks of keys each row of blocks looks at: the tiles of a pattern, listed both ways."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument
from eyeline.patterns import FULL, PARTIAL, Pattern
from eyeline.planning.palette import evaluate, palette
from eyeline.planning.pyramid import pyramid
from eyeline.planning.refine import Tiling, refine, verdicts
from eyeline.tokens import Tokens

# PARTIAL blocks without a shared mask are looked at pair by pair up to this many pairs in all.
_EVALUATED = 1 << 24
_BATCH = 1 << 22
# More blocks than this are not listed: making the lists takes about 64 bytes a block.
_MOST_BLOCKS = 1 << 26


@final
@dataclass(frozen=True, eq=False)
class Blocks:
    """Disjoint rectangles of blocks: int64 (N, 4), first row, end row, first column, end column.

    full: every pair of a block is allowed. partial: some are. A block that reaches past the end
    of the sequence is never full, as in FlexAttention.
    """

    full: Tensor
    partial: Tensor


class Listed(NamedTuple):
    """The blocks of each row, one row after the other: counts (rows,), columns (their sum,)."""

    counts: Tensor
    columns: Tensor


def blocks(pattern: Pattern, q: Tokens, k: Tokens, size: int) -> Blocks:
    """The blocks of ``size`` × ``size`` pairs that are not empty, for one sequence and one head.

    Visits tiles that are not EMPTY only. Raises InvalidArgument for more blocks than fit.
    """
    tiling = _down_to(size, pattern, q, k, refine(pattern, q, k, tile=size, largest=size))
    allowed = _allowed(pattern, q, k, tiling)
    row, column = tiling.partial.unbind(1)
    single = torch.stack([row, row + 1, column, column + 1], 1)
    full, ragged = _clipped(tiling.full, q.length, k.length, size)
    found = Blocks(
        full=torch.cat([full, single[allowed == size * size]]),
        partial=torch.cat([ragged, single[(allowed != size * size) & (allowed != 0)]]),
    )
    _check_count(found, pattern, size)
    return found


def listed(rectangles: Tensor, rows: int) -> Listed:
    """The blocks of some rectangles, row by row, each row's columns in order."""
    top, bottom, left, right = rectangles.unbind(1)
    which, row = _spread(top, bottom)
    left, right = left[which], right[which]
    # Rectangles of one row are disjoint: ordered by where they begin, their columns are in order.
    order = (row << 32 | left).argsort()
    row, left, right = row[order], left[order], right[order]
    count = torch.zeros(rows, dtype=torch.int64).index_add(0, row, right - left)
    return Listed(count.int(), _spread(left, right)[1].int())


def transposed(rectangles: Tensor) -> Tensor:
    """The same rectangles with rows and columns exchanged."""
    return rectangles[:, [2, 3, 0, 1]]


def _spread(first: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """For spans first … end - 1, laid end to end: which span, and which number, each entry is."""
    size = end - first
    which = torch.repeat_interleave(size)
    return which, torch.arange(len(which)) + (first - (size.cumsum(0) - size))[which]


def _down_to(size: int, pattern: Pattern, q: Tokens, k: Tokens, tiling: Tiling) -> Tiling:
    """Split on where ``refine`` stopped because nearly all tiles were PARTIAL."""
    if tiling.tile == size:
        return tiling
    rows, columns = pyramid(q, size), pyramid(k, size)
    level = (tiling.tile // size).bit_length() - 1
    full, frontier = [tiling.full << level], tiling.partial
    corner = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    for finer in reversed(range(level)):
        of_rows, of_columns = rows[min(finer, len(rows) - 1)], columns[min(finer, len(columns) - 1)]
        frontier = (2 * frontier[:, None] + corner).view(-1, 2)
        inside = frontier < torch.tensor([len(of_rows), len(of_columns)])
        frontier = frontier[inside.all(1)]
        verdict = verdicts(pattern, of_rows, of_columns, frontier)
        whole = frontier[verdict == FULL]
        full.append(torch.cat([whole, torch.ones_like(whole[:, :1])], 1) << finer)
        frontier = frontier[verdict == PARTIAL]
    return Tiling(size, torch.cat(full), frontier, rows[0], columns[0])


def _allowed(pattern: Pattern, q: Tokens, k: Tokens, tiling: Tiling) -> Tensor:
    """How many pairs each PARTIAL tile really allows; -1 where it was not looked up."""
    masks = palette(pattern, q, k, tiling)
    allowed = torch.where(masks.code > 0, masks.count[masks.code], -1)
    unknown = (masks.code == 0).nonzero()[:, 0]
    if len(unknown) * tiling.tile**2 > _EVALUATED:
        return allowed
    for some in unknown.split(max(_BATCH // tiling.tile**2, 1)):
        found = evaluate(pattern, q, k, tiling.partial[some], tiling.tile)
        allowed[some] = found.sum((1, 2))
    return allowed


def _clipped(full: Tensor, queries: int, keys: int, size: int) -> tuple[Tensor, Tensor]:
    """FULL squares as rectangles: what lies inside the sequence, and the blocks at its end."""
    row, column, edge = full.unbind(1)
    bottom = (row + edge).clamp(max=-(-queries // size))
    right = (column + edge).clamp(max=-(-keys // size))
    last_row, last_column = queries // size, keys // size
    inner_bottom, inner_right = bottom.clamp(max=last_row), right.clamp(max=last_column)
    inside = torch.stack([row, inner_bottom, column, inner_right], 1)
    below = torch.stack([row.clamp(min=last_row), bottom, column, right], 1)
    beside = torch.stack([row, inner_bottom, column.clamp(min=last_column), right], 1)
    return _kept(inside), _kept(torch.cat([below, beside]))


def _kept(rectangles: Tensor) -> Tensor:
    top, bottom, left, right = rectangles.unbind(1)
    return rectangles[(bottom > top) & (right > left)]


def _check_count(found: Blocks, pattern: Pattern, size: int) -> None:
    both = torch.cat([found.full, found.partial])
    count = int(((both[:, 1] - both[:, 0]) * (both[:, 3] - both[:, 2])).sum())
    if count > _MOST_BLOCKS:
        raise InvalidArgument(
            f"{pattern} has {count:,} blocks of {size} × {size} pairs; listing them would take "
            f"about {count * 64 / 2**30:.0f} GiB, and {_MOST_BLOCKS:,} are the most: "
            f"a block_size of {2 * size} needs a quarter"
        )
