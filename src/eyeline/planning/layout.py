"""From tiles to rectangles, and from rectangles to the parts of a plan."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eyeline.planning.dense import repeated, rows_at
from eyeline.planning.palette import Palette
from eyeline.planning.parts import Gathered, Part, Run, Slab
from eyeline.planning.refine import Tiling

# Runs of equal neighbours in sorted arrays.


def spans(begins: Tensor) -> tuple[Tensor, Tensor]:
    """First and last index of each span; ``begins`` is True where one begins, and at index 0."""
    first = begins.nonzero()[:, 0]
    return first, torch.nn.functional.pad(first, (0, 1), value=len(begins))[1:] - 1


def lexsort(*keys: Tensor) -> Tensor:
    """The order that sorts by the last key, ties by the one before it, and so on."""
    order = keys[0].argsort(stable=True)
    for key in keys[1:]:
        order = order[key[order].argsort(stable=True)]
    return order


# From tiles to rectangles: in each row of tiles, neighbours join into one stretch of keys.
#
# A rectangle is some consecutive queries and some consecutive keys. Its mask is the tuple of its
# tiles' codes; rectangles without a mask are joined downwards too.

# Rectangles with masks have columns in multiples of this, where keys are there: a product of 320
# columns takes a quarter less time than one of 319.
_ALIGNED = 16
# A piece of this many equal tiles stands alone: it then needs no mask at all.
_LONG = 8


@dataclass(frozen=True)
class Segments:
    """Pieces of a row of tiles with one code: row, first column, end column, code (0: FULL).

    A code of -1 means a mask that is made when used. Pieces of several tiles need no mask.
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
    long = pieces.end - pieces.first >= _LONG
    begins = torch.ones_like(long)
    begins[1:] = (pieces.row[1:] != pieces.row[:-1]) | (pieces.first[1:] != pieces.end[:-1])
    begins[1:] |= long[1:] | long[:-1]
    start, last = spans(begins)
    return _joined_downwards(_trimmed(pieces, start, last, begins, tiling, palette, queries, keys))


def _segments(tiling: Tiling, palette: Palette, queries: int, keys: int) -> Segments:
    """FULL blocks laid out row by row and PARTIAL tiles, in order, and neighbours joined.

    Those are joined that are FULL, or the same rows of which are: whole rows are long and thin.
    """
    rows, columns = -(-queries // tiling.tile), -(-keys // tiling.tile)
    row, first, edge = tiling.full.unbind(1)
    height = (row + edge).clamp(max=rows) - row
    block = repeated(height)
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
    thin = (palette.box[:, 2] == 0) & (palette.box[:, 3] == tiling.tile) & palette.solid
    thin[0] = True  # FULL
    joins = (code >= 0) & thin[code.clamp(min=0)]
    new = torch.ones_like(row, dtype=torch.bool)
    new[1:] = (row[1:] != row[:-1]) | (first[1:] != end[:-1]) | (code[1:] != code[:-1])
    new[1:] |= ~joins[1:]
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
    box = rows_at(palette.box, pieces.code.clamp(min=0))
    first, final = torch.zeros_like(begins), torch.zeros_like(begins)
    first[start], final[last] = True, True
    edge = {
        how: torch.zeros_like(rows_at(box, start)[:, :2]).scatter_reduce(
            0, stretch[:, None].expand(-1, 2), box[:, :2], how, include_self=False
        )
        for how in ("amin", "amax")
    }
    top, bottom = edge["amin"][:, 0], edge["amax"][:, 1]
    row = pieces.row[start]
    # No mask is needed where all pieces hold the same rows, all of them, without a gap.
    solid = (pieces.code == 0) | ((pieces.code > 0) & palette.solid[pieces.code.clamp(min=0)])
    solid &= (first | (box[:, 2] == 0)) & (final | (box[:, 3] == tile))
    broken = torch.zeros_like(start).scatter_add(0, stretch, (~solid).long()) > 0
    masked = broken | (edge["amin"] != edge["amax"]).any(1)
    unknown = torch.zeros_like(start).scatter_add(0, stretch, (pieces.code < 0).long())
    left, right = box[start, 2], box[last, 3]
    left = torch.where(masked, left - left % _ALIGNED, left)
    right = torch.where(masked, right + -right % _ALIGNED, right)
    found = Rectangles(
        q0=row * tile + top,
        q1=(row * tile + bottom).clamp(max=queries),
        k0=pieces.first[start] * tile + left,
        k1=((pieces.end[last] - 1) * tile + right).minimum(pieces.end[last] * tile).clamp(max=keys),
        masked=masked,
        known=unknown == 0,
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


# From rectangles to parts: find equal ones at equal steps, so that one call does many.

# Fewer rectangles than this are not worth a gathered copy.
_GATHER_FROM = 8


def group(found: Rectangles) -> tuple[list[Run], list[Part]]:
    """Runs (their masks still to be filled in), then everything else."""
    order = lexsort(found.q0, found.k1 - found.k0, found.q1 - found.q0, found.k0 - found.q0)
    found = found.take(order)
    start, last = _chains(found.q0, _linked(found))
    alone = (last == start) | _accidental(found, start, last)
    members = alone[repeated(last - start + 1)]
    return _runs(found, start[~alone], last[~alone]), _singles(found.take(members.nonzero()[:, 0]))


def _accidental(found: Rectangles, start: Tensor, last: Tensor) -> Tensor:
    """Whether a chain is one of many short ones that are better gathered: scattered blocks."""
    short = ~found.masked[start] & (last - start + 1 < _GATHER_FROM)
    _, which = _shapes(found)[start].unique(return_inverse=True)
    chains = torch.bincount(which[short], minlength=len(start))
    return short & (chains[which] >= _GATHER_FROM)


def _shapes(found: Rectangles) -> Tensor:
    """Rows and columns of each rectangle as one number."""
    return (found.q1 - found.q0 << 32) + found.k1 - found.k0


def _linked(found: Rectangles) -> Tensor:
    """Whether each rectangle looks like the one before it, further along the diagonal."""
    ahead, behind = slice(1, None), slice(None, -1)
    rows, columns = found.q1 - found.q0, found.k1 - found.k0
    alike = (rows[ahead] == rows[behind]) & (columns[ahead] == columns[behind])
    alike &= (found.k0 - found.q0)[ahead] == (found.k0 - found.q0)[behind]
    alike &= found.masked[ahead] == found.masked[behind]
    # Rectangles that share queries cannot be merged in one go.
    alike &= found.q0[ahead] >= found.q1[behind]
    alike &= ~found.masked[ahead] | _same_masks(found)
    return alike


def _same_masks(found: Rectangles) -> Tensor:
    """Whether each rectangle has exactly the pieces of the one before it, relative to its row."""
    pieces = found.pieces
    count = found.segments
    same = found.known[1:] & found.known[:-1] & (count[1:] == count[:-1])
    which = repeated(torch.where(same, count[1:], 0))
    sizes = torch.where(same, count[1:], 0)
    offset = torch.arange(len(which)) - (sizes.cumsum(0) - sizes)[which]
    here, there = found.segment[1:][which] + offset, found.segment[:-1][which] + offset
    differs = torch.zeros_like(which, dtype=torch.bool)
    for values in (pieces.first - pieces.row, pieces.end - pieces.row, pieces.code):
        differs |= values[here] != values[there]
    wrong = torch.zeros_like(count[1:]).scatter_add(0, which, differs.long())
    return same & (wrong == 0)


def _chains(q0: Tensor, linked: Tensor) -> tuple[Tensor, Tensor]:
    """First and last index of each chain of linked rectangles with one constant step."""
    step = q0[1:] - q0[:-1]
    new = torch.ones_like(q0, dtype=torch.bool)
    new[1:] = ~linked
    new[2:] |= linked[:-1] & (step[1:] != step[:-1])
    return spans(new)


def _runs(found: Rectangles, start: Tensor, last: Tensor) -> list[Run]:
    first, second = found.take(start), found.take(start + 1)
    columns = (
        first.q0, first.k0, first.q1 - first.q0, first.k1 - first.k0,
        second.q0 - first.q0, last - start + 1,
    )  # fmt: skip
    masked = first.masked.tolist()
    rows = torch.stack(columns, 1).tolist()
    # An empty tensor stands for a mask that plan() fills in from the run's first rectangle.
    pending = torch.empty(0, dtype=torch.bool)
    return [
        Run(q0, k0, height, width, step, count, pending if mask else None)
        for (q0, k0, height, width, step, count), mask in zip(rows, masked, strict=True)
    ]


def _singles(single: Rectangles) -> list[Part]:
    """Rectangles without masks that share a shape are gathered; the others stand alone."""
    open_ = (~single.masked).nonzero()[:, 0]
    shapes, which, size = _shapes(single)[open_].unique(return_inverse=True, return_counts=True)
    parts: list[Part] = []
    alone = torch.ones_like(single.masked)
    for index in (size >= _GATHER_FROM).nonzero()[:, 0].tolist():
        alike = open_[which == index]
        alone[alike] = False
        parts += _gathered(single.take(alike), *divmod(int(shapes[index]), 1 << 32))
    edges = (single.q0, single.k0, single.q1 - single.q0, single.k1 - single.k0)
    table = rows_at(torch.stack(edges, 1), alone).tolist()
    masked = single.masked[alone].tolist()
    return parts + [
        Slab(q0, k0, rows, columns, mask)
        for (q0, k0, rows, columns), mask in zip(table, masked, strict=True)
    ]


def _gathered(alike: Rectangles, rows: int, columns: int) -> list[Part]:
    lane = _lanes(alike.q0, rows)
    chosen = [alike.take((lane == n).nonzero()[:, 0]) for n in range(int(lane.max()) + 1)]
    return [Gathered(some.q0, some.k0, rows, columns) for some in chosen]


def _lanes(q0: Tensor, rows: int) -> Tensor:
    """Number rectangles so that those with one number share no query."""
    order = q0.argsort(stable=True)
    ordered = q0[order]
    # How many rectangles before this one reach into it; all have the same height.
    reach = torch.searchsorted(ordered, ordered - rows, right=True)
    depth = int((torch.arange(len(order)) - reach).max()) + 1
    return torch.empty_like(order).scatter_(0, order, torch.arange(len(order)) % depth)
