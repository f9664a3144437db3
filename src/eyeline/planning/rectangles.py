"""From tiles to rectangles: in each row of tiles, neighbours join into one stretch of keys.

A rectangle is some consecutive queries and some consecutive keys. Its mask is the tuple of its
tiles' codes; rectangles without a mask are joined downwards too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eyeline.planning.palette import Palette
from eyeline.planning.refine import Tiling
from eyeline.planning.spans import lexsort, spans

# Rectangles with masks have columns in multiples of this, where keys are there: a product of 320
# columns takes a quarter less time than one of 319.
_ALIGNED = 16
# A stretch of this many FULL tiles stands alone: it then needs no mask at all.
_LONG = 8


@dataclass(frozen=True)
class Segments:
    """Pieces of a row of tiles with one code: row, first column, end column, code (0: FULL).

    A code of -1 means a mask that is made when used.
    """

    row: Tensor
    first: Tensor
    end: Tensor
    code: Tensor


@dataclass(frozen=True)
class Rectangles:
    """Disjoint rectangles of pairs: queries q0 … q1 - 1, keys k0 … k1 - 1, (N,) each.

    masked: whether a mask is needed. known: whether the mask is one of the palette's.
    segment, segments: where the rectangle's pieces begin in ``pieces``, and how many there are.
    """

    q0: Tensor
    q1: Tensor
    k0: Tensor
    k1: Tensor
    masked: Tensor
    known: Tensor
    segment: Tensor
    segments: Tensor
    pieces: Segments

    def take(self, index: Tensor) -> Rectangles:
        q0, q1, k0, k1, masked, known, segment, segments = (
            x[index]
            for x in (
                self.q0, self.q1, self.k0, self.k1,
                self.masked, self.known, self.segment, self.segments,
            )
        )  # fmt: skip
        return Rectangles(q0, q1, k0, k1, masked, known, segment, segments, self.pieces)


def rectangles(tiling: Tiling, palette: Palette, queries: int, keys: int) -> Rectangles:
    """All rectangles of a tiling, trimmed to what their masks use, clipped to (L, S)."""
    pieces = _segments(tiling, palette, queries, keys)
    long = (pieces.code == 0) & (pieces.end - pieces.first >= _LONG)
    begins = torch.ones_like(long)
    begins[1:] = (pieces.row[1:] != pieces.row[:-1]) | (pieces.first[1:] != pieces.end[:-1])
    begins[1:] |= long[1:] | long[:-1]
    start, last = spans(begins)
    return _joined_downwards(_trimmed(pieces, start, last, begins, tiling, palette, queries, keys))


def _segments(tiling: Tiling, palette: Palette, queries: int, keys: int) -> Segments:
    """FULL blocks laid out row by row and PARTIAL tiles, in order, FULL neighbours joined."""
    rows, columns = -(-queries // tiling.tile), -(-keys // tiling.tile)
    row, first, edge = tiling.full.unbind(1)
    height = (row + edge).clamp(max=rows) - row
    block = torch.repeat_interleave(height)
    offset = torch.arange(len(block)) - (height.cumsum(0) - height)[block]
    end = (first + edge).clamp(max=columns)
    partial_row, partial_column = tiling.partial.unbind(1)
    code = torch.where(palette.code > 0, palette.code, -1)
    all_row = torch.cat([row[block] + offset, partial_row])
    all_first = torch.cat([first[block], partial_column])
    all_end = torch.cat([end[block], partial_column + 1])
    all_code = torch.cat([torch.zeros_like(block), code])
    order = (all_row * columns + all_first).argsort()
    row, first, end, code = (x[order] for x in (all_row, all_first, all_end, all_code))
    new = torch.ones_like(row, dtype=torch.bool)
    new[1:] = (row[1:] != row[:-1]) | (first[1:] != end[:-1]) | (code[1:] != 0) | (code[:-1] != 0)
    start, last = spans(new)
    return Segments(row[start], first[start], end[last], code[start])


def _trimmed(
    pieces: Segments,
    start: Tensor,
    last: Tensor,
    begins: Tensor,
    tiling: Tiling,
    palette: Palette,
    queries: int,
    keys: int,
) -> Rectangles:
    tile, count = tiling.tile, last - start + 1
    stretch = begins.long().cumsum(0) - 1
    box = palette.box[pieces.code.clamp(min=0)]
    top = box[:, 0].new_full(start.shape, tile).scatter_reduce(0, stretch, box[:, 0], "amin")
    bottom = torch.zeros_like(start).scatter_reduce(0, stretch, box[:, 1], "amax")
    row = pieces.row[start]
    solid = (count == 1) & palette.solid[pieces.code.clamp(min=0)][start]
    least = torch.zeros_like(start).scatter_reduce(0, stretch, pieces.code, "amin")
    most = torch.zeros_like(start).scatter_reduce(0, stretch, pieces.code, "amax")
    left, right = box[start, 2], box[last, 3]
    masked = ((least < 0) | (most > 0)) & ~solid
    left = torch.where(masked, left - left % _ALIGNED, left)
    right = torch.where(masked, right + -right % _ALIGNED, right)
    found = Rectangles(
        q0=row * tile + top,
        q1=(row * tile + bottom).clamp(max=queries),
        k0=pieces.first[start] * tile + left,
        k1=((pieces.end[last] - 1) * tile + right).minimum(pieces.end[last] * tile).clamp(max=keys),
        masked=masked,
        known=least == 0,
        segment=start,
        segments=count,
        pieces=pieces,
    )
    return found.take(((found.q1 > found.q0) & (found.k1 > found.k0)).nonzero()[:, 0])


def _joined_downwards(found: Rectangles) -> Rectangles:
    """Join rectangles without masks that lie below each other and see the same keys."""
    order = lexsort(found.q0, found.k1, found.k0, found.masked.long())
    found = found.take(order)
    new = torch.ones_like(found.masked)
    same = (found.k0[1:] == found.k0[:-1]) & (found.k1[1:] == found.k1[:-1])
    touching = found.q0[1:] == found.q1[:-1]
    new[1:] = ~(same & touching) | found.masked[1:] | found.masked[:-1]
    start, last = spans(new)
    return replace(found.take(start), q1=found.q1[last])
