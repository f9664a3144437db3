"""How many pairs of each cell of a grid a pattern allows: counted, or estimated from samples.

Verdicts tell which cells hold nothing and which hold everything. The others are split, from
coarse to fine, as long as there are few; what is then left undecided is sampled.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from eyeline.patterns import FULL, PARTIAL, Pattern
from eyeline.planning.palette import evaluate, palette
from eyeline.planning.pyramid import Level, pyramid
from eyeline.planning.refine import Tiling, verdicts
from eyeline.planning.samples import sampled
from eyeline.tokens import Tokens

# No more tiles than this are split, and no more pairs are counted one by one.
_TILES = 1 << 17
_PAIRS = 1 << 22


class Counts(NamedTuple):
    """pairs: float64 (rows, columns), the allowed ones in each cell. exact: bool, where counted."""

    pairs: Tensor
    exact: Tensor


class _Sides(NamedTuple):
    """A pattern over tokens, with the levels of tiles on both sides, the finest first."""

    pattern: Pattern
    q_tokens: Tokens
    k_tokens: Tokens
    tile: int
    rows: list[Level]
    columns: list[Level]


def counted(pattern: Pattern, q_tokens: Tokens, k_tokens: Tokens, cell: int) -> Counts:
    """By looking at every pair, for short inputs."""
    mask = pattern.sees(q_tokens.points(axis=-2), k_tokens.points(axis=-1))
    down, across = (-size % cell for size in mask.shape)
    padded = torch.nn.functional.pad(mask, (0, across, 0, down))
    cells = padded.view(padded.shape[0] // cell, cell, padded.shape[1] // cell, cell)
    count = cells.sum((1, 3)).double()
    return Counts(count, torch.ones_like(count, dtype=torch.bool))


def scanned(pattern: Pattern, q: Tokens, k: Tokens, *, tile: int, depth: int) -> Counts:
    """By verdicts about cells of tile · 2^depth slots and smaller tiles within them."""
    rows = _levels(q, tile, depth)
    columns = rows if k is q else _levels(k, tile, depth)
    sides = _Sides(pattern, q, k, tile, rows, columns)
    count = torch.zeros(len(rows[depth]), len(columns[depth]), dtype=torch.float64)
    exact = torch.ones_like(count, dtype=torch.bool)
    tiles = torch.cartesian_prod(*(torch.arange(size) for size in count.shape))
    for level in reversed(range(depth + 1)):
        verdict = verdicts(pattern, rows[level], columns[level], tiles)
        whole = tiles[verdict == FULL]
        _add(count, whole >> depth - level, _area(sides, whole, level))
        tiles = tiles[verdict == PARTIAL]
        if level == 0 or 4 * len(tiles) > _TILES:
            break
        tiles = _children(tiles, len(rows[level - 1]), len(columns[level - 1]))
    found, known = _undecided(sides, tiles, level)
    cells = tiles >> depth - level
    _add(count, cells, found)
    exact[tuple(cells[~known].unbind(1))] = False
    return Counts(count, exact)


def _levels(tokens: Tokens, tile: int, depth: int) -> list[Level]:
    levels = list(pyramid(tokens, tile))
    return levels + levels[-1:] * (depth + 1 - len(levels))


def _children(tiles: Tensor, rows: int, columns: int) -> Tensor:
    corner = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    children = (2 * tiles[:, None, :] + corner).view(-1, 2)
    return children[(children[:, 0] < rows) & (children[:, 1] < columns)]


def _add(count: Tensor, cells: Tensor, pairs: Tensor) -> None:
    count.index_put_(tuple(cells.unbind(1)), pairs, accumulate=True)


def _area(sides: _Sides, tiles: Tensor, level: int) -> Tensor:
    """How many pairs lie in each tile; those at the ends are cut short."""
    edge = sides.tile << level
    ends = tiles.new_tensor([sides.q_tokens.length, sides.k_tokens.length])
    return (ends - tiles * edge).clamp(max=edge).prod(1).double()


def _undecided(sides: _Sides, tiles: Tensor, level: int) -> tuple[Tensor, Tensor]:
    """The allowed pairs in each PARTIAL tile, and whether they were counted."""
    if level == 0:
        return _finest(sides, tiles)
    pattern, q, k, tile, _, _ = sides
    share = sampled(pattern, q, k, tiles, tile << level)
    return share * _area(sides, tiles, level), torch.zeros_like(share, dtype=torch.bool)


def _finest(sides: _Sides, tiles: Tensor) -> tuple[Tensor, Tensor]:
    """The allowed pairs in PARTIAL tiles of the finest level, and whether they were counted."""
    pattern, q, k, tile, rows, columns = sides
    tiling = Tiling(tile, torch.empty(0, 3, dtype=torch.int64), tiles, rows[0], columns[0])
    masks = palette(pattern, q, k, tiling)
    found = masks.count[masks.code].double()
    counted = torch.ones_like(found, dtype=torch.bool)
    rest = (masks.code == 0).nonzero()[:, 0]
    if len(rest) * tile**2 <= _PAIRS:
        found[rest] = evaluate(pattern, q, k, tiles[rest], tile).sum((1, 2)).double()
        return found, counted
    found[rest] = sampled(pattern, q, k, tiles[rest], tile) * _area(sides, tiles[rest], 0)
    counted[rest] = False
    return found, counted
