"""From rectangles to parts: find equal ones at equal steps, so that one call does many."""

from __future__ import annotations

import torch
from torch import Tensor

from eyeline.planning.parts import Gathered, Part, Run, Slab
from eyeline.planning.rectangles import Rectangles
from eyeline.planning.spans import lexsort, spans

# Fewer rectangles than this are not worth a gathered copy.
_GATHER_FROM = 8


def group(found: Rectangles) -> tuple[list[Run], list[Part]]:
    """Runs (their masks still to be filled in), then everything else."""
    order = lexsort(found.q0, found.k1 - found.k0, found.q1 - found.q0, found.k0 - found.q0)
    found = found.take(order)
    start, last = _chains(found.q0, _linked(found))
    alone = (last == start) | _accidental(found, start, last)
    members = torch.repeat_interleave(alone, last - start + 1)
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
    which = torch.repeat_interleave(torch.where(same, count[1:], 0))
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
    table = torch.stack(edges, 1)[alone].tolist()
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
