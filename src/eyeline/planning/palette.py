"""The masks of PARTIAL tiles: those with equal signatures share one, evaluated once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eyeline.budgets import at_once, budgets
from eyeline.memory import remembered
from eyeline.patterns import Pattern
from eyeline.patterns.base import UNBOUNDED, UNKNOWN
from eyeline.planning.dense import rows_at
from eyeline.planning.refine import Tiling
from eyeline.tokens import NOBODY, Points, Tokens

_ODD = 0x9E3779B97F4A7C15 - (1 << 64)


@dataclass(frozen=True)
class Palette:
    """Shared masks of PARTIAL tiles.

    code: (P,) which mask each PARTIAL tile has: 1 … M, or 0 where its mask is made when used.
    box: (M + 1, 4) the rectangle that holds all True of a mask: first row, end row, first column,
        end column, within the tile. Entry 0 is the whole tile.
    solid: (M + 1,) whether all of the box is True, so that it needs no mask.
    count: (M + 1,) the number of True.
    """

    code: Tensor
    box: Tensor
    solid: Tensor
    count: Tensor


def palette(pattern: Pattern, q_tokens: Tokens, k_tokens: Tokens, tiling: Tiling) -> Palette:
    """Find which PARTIAL tiles share a mask, and evaluate one tile for each mask."""
    code, examples = _codes(pattern, q_tokens, k_tokens, tiling)
    tile = tiling.tile
    box = torch.tensor([[0, tile, 0, tile]], device=code.device)
    solid = torch.zeros(1, dtype=torch.bool, device=code.device)
    count = torch.zeros(1, dtype=torch.int64, device=code.device)
    if not len(examples):
        return Palette(code, box, solid, count)
    # Few at a time, so that positions and what is compared stay in the processor's cache.
    some = rows_at(tiling.partial, examples).split(at_once(tile**2, budgets.evaluated))
    masks = torch.cat([evaluate(pattern, q_tokens, k_tokens, tiles, tile) for tiles in some])
    count = torch.cat([count, masks.view(torch.uint8).sum((1, 2), dtype=torch.int32)])
    boxes = torch.cat([_span(_some(masks, 2)), _span(_some(masks, 1))], 1)
    area = (boxes[:, 1] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 2])
    return Palette(code, torch.cat([box, boxes]), torch.cat([solid, area == count[1:]]), count)


def evaluate(
    pattern: Pattern, q_tokens: Tokens, k_tokens: Tokens, tiles: Tensor, tile: int
) -> Tensor:
    """The masks of some tiles, (N, tile, tile); slots past the end are False.

    Where there are fewer slots than a tile has, (N, slots, tile) or (N, tile, slots).
    """
    height, width = (min(tile, tokens.length) for tokens in (q_tokens, k_tokens))
    q = _points(q_tokens, tiles[:, 0], tile, height)
    k = _points(k_tokens, tiles[:, 1], tile, width)
    return pattern.sees(q.unsqueeze(2), k.unsqueeze(1))


def _points(tokens: Tokens, tiles: Tensor, tile: int, count: int) -> Points:
    """Who stands in the first slots of each tile, (N, count); past the end is nobody."""
    slot = tiles[:, None] * tile + torch.arange(count, device=tiles.device)
    inside = slot < tokens.length
    points = tokens.at(slot.clamp(max=tokens.length - 1))
    return points._replace(position=torch.where(inside, points.position, NOBODY))


def _some(masks: Tensor, axis: int) -> Tensor:
    """masks.any(axis), by halves: torch's own takes twenty times as long."""
    while masks.shape[axis] > 1:
        half = masks.shape[axis] // 2
        joined = masks.narrow(axis, 0, half) | masks.narrow(axis, half, half)
        rest = masks.narrow(axis, 2 * half, masks.shape[axis] - 2 * half)
        masks = torch.cat([joined, rest], axis) if rest.shape[axis] else joined
    return masks.squeeze(axis)


def _span(used: Tensor) -> Tensor:
    """First and end index of the True in each row: (M, 2); (0, 0) where there is none."""
    slot = torch.arange(used.shape[1], device=used.device)
    end = torch.where(used, slot + 1, 0).amax(1)
    first = torch.where(used, slot, used.shape[1]).amin(1)
    return torch.stack([first.minimum(end), end], 1)


def _codes(
    pattern: Pattern, q_tokens: Tokens, k_tokens: Tokens, tiling: Tiling
) -> tuple[Tensor, Tensor]:
    """The code of each PARTIAL tile, and the index of one example for each code from 1 on."""
    row, column = tiling.partial.unbind(1)
    code = torch.zeros_like(row)
    nothing = torch.zeros(0, dtype=torch.int64, device=row.device)
    q, k = tiling.rows.take(row), tiling.columns.take(column)
    signature = pattern.signature(q.bounds, k.bounds)
    if signature is None or not len(row):
        return code, nothing
    q_spacing = _spacing(q_tokens, tiling.tile)
    k_spacing = q_spacing if k_tokens is q_tokens else _spacing(k_tokens, tiling.tile)
    columns = (*signature, q_spacing[row], k_spacing[column])
    table = torch.stack([x.broadcast_to(row.shape) for x in columns], 1)
    known = (table != UNKNOWN).all(1)
    index = known.nonzero()[:, 0]
    shared, examples = _group(rows_at(table, index))
    fits = examples[: budgets.palette // tiling.tile**2]
    code[index] = torch.where(shared < len(fits), shared + 1, 0)
    return code, index[fits]


@remembered(8)
def _spacing(tokens: Tokens, tile: int) -> Tensor:
    """A number for each tile: equal where slots stand at equal distances from the tile's least.

    0: at consecutive positions. Empty slots, and those past the end, are part of the spacing.
    """
    position = tokens.positions
    ends = torch.ones_like(position, dtype=torch.bool)
    ends[1:] = (position[1:] - position[:-1] == 1) & (position[:-1] != NOBODY)
    ends[::tile] = position[::tile] != NOBODY
    missing = -len(position) % tile
    padded = torch.nn.functional.pad(ends, (0, missing), value=False)
    spacing = (~padded.view(-1, tile).all(1)).long()
    index = spacing.nonzero()[:, 0]
    if not len(index):
        return spacing
    position = _points(tokens, index, tile, tile).position
    empty = position == NOBODY
    least = position.masked_fill(empty, UNBOUNDED).amin(1, keepdim=True)
    spacing[index] = 1 + _group((position - least).masked_fill(empty, NOBODY))[0]
    return spacing


def _group(table: Tensor) -> tuple[Tensor, Tensor]:
    """Number the distinct rows of a table by falling frequency; one example row for each.

    Rows are compared by a hash first, since sorting whole rows is slow, and then exactly.
    """
    key = torch.zeros(len(table), dtype=torch.int64, device=table.device)
    for column in table.unbind(1):
        key = (key ^ column) * _ODD
        key = key ^ (key >> 29)
    _, group, size = key.unique(return_inverse=True, return_counts=True)
    example = torch.zeros_like(size).scatter_(0, group, torch.arange(len(table)))
    if not torch.equal(table, rows_at(table, example[group])):
        _, group, size = table.unique(dim=0, return_inverse=True, return_counts=True)
        example = torch.zeros_like(size).scatter_(0, group, torch.arange(len(table)))
    order = size.argsort(descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
    return rank[group], example[order]
