"""From one coarse range to tiles: ask for verdicts, drop EMPTY, keep FULL, split PARTIAL."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eyeline.patterns import EMPTY, FULL, PARTIAL, Pattern
from eyeline.planning.pyramid import Level, pyramid
from eyeline.tokens import Tokens

# Stop splitting once PARTIAL tiles are this small a share of the area: larger tiles run faster.
_PARTIAL_SHARE = 0.25
# Where this many tiles a row are still PARTIAL, splitting stops too: memory stays linear.
_MOST_TILES = 32
# The first look is at this many ranges on each side; fewer would only add rounds.
_COARSEST = 64


@dataclass(frozen=True)
class Tiling:
    """The tiles that must be looked at, in units of ``tile`` slots.

    full: (F, 3) blocks of pairs that are all allowed: first row, first column, edge length.
    partial: (P, 2) tiles that need a mask: row, column.
    rows, columns: the finest levels of queries and keys, at this tile size.
    """

    tile: int
    full: Tensor
    partial: Tensor
    rows: Level
    columns: Level


def refine(
    pattern: Pattern,
    q_tokens: Tokens,
    k_tokens: Tokens,
    *,
    tile: int,
    largest: int,
    modulus: int = 1,
) -> Tiling:
    """Split the whole (L, S) rectangle until what is PARTIAL is small, between two tile sizes.

    tile, largest: the smallest and largest edge of a PARTIAL tile; largest = tile · 2^m. modulus:
    by which the tokens were ordered. Visits the tiles that are not EMPTY and their neighbours,
    never all of them.
    """
    start = _start(-(-max(q_tokens.length, k_tokens.length) // tile))
    rows = pyramid(q_tokens, tile, modulus, start + 1)
    columns = rows if k_tokens is q_tokens else pyramid(k_tokens, tile, modulus, start + 1)
    rows, columns = (_extended(levels, start + 1) for levels in (rows, columns))
    frontier = torch.cartesian_prod(
        torch.arange(len(rows[start])), torch.arange(len(columns[start]))
    )
    full: list[Tensor] = []
    for level in reversed(range(start + 1)):
        verdict = verdicts(pattern, rows[level], columns[level], frontier)
        whole = frontier[verdict == FULL]
        frontier = frontier[verdict == PARTIAL]
        full.append(torch.cat([whole << level, torch.full_like(whole[:, :1], 1 << level)], 1))
        edge = tile << level
        most = _MOST_TILES * (len(rows[0]) + len(columns[0]))
        done = edge <= largest and _mostly_full(full, len(frontier), level)
        if level == 0 or done or 4 * len(frontier) > most:
            break
        frontier = _children(frontier, len(rows[level - 1]), len(columns[level - 1]))
    blocks = torch.cat(full)
    return Tiling(edge, blocks >> level, frontier, rows[level], columns[level])


def finer(
    pattern: Pattern,
    q_tokens: Tokens,
    k_tokens: Tokens,
    tiles: Tensor,
    *,
    tile: int,
    halvings: int,
    modulus: int = 1,
) -> Tiling:
    """What is in some tiles of edge ``tile``, in tiles of edge tile / 2^halvings."""
    edge = tile >> halvings
    rows, columns = (pyramid(x, edge, modulus, halvings + 1) for x in (q_tokens, k_tokens))
    rows, columns = (_extended(levels, halvings + 1) for levels in (rows, columns))
    full = [tiles.new_zeros(0, 3)]
    for level in reversed(range(halvings)):
        tiles = _children(tiles, len(rows[level]), len(columns[level]))
        verdict = verdicts(pattern, rows[level], columns[level], tiles)
        whole, tiles = tiles[verdict == FULL], tiles[verdict == PARTIAL]
        full.append(torch.cat([whole << level, torch.full_like(whole[:, :1], 1 << level)], 1))
    return Tiling(edge, torch.cat(full), tiles, rows[0], columns[0])


def verdicts(pattern: Pattern, rows: Level, columns: Level, tiles: Tensor) -> Tensor:
    """The pattern's verdict about some tiles, with nobody taken out: (len(tiles),) uint8."""
    q, k = rows.take(tiles[:, 0]), columns.take(tiles[:, 1])
    verdict = pattern.verdict(q.bounds, k.bounds).broadcast_to(tiles.shape[:1])
    # An empty slot is looked at by nobody: no tile that holds one is FULL.
    verdict = torch.where(q.nobody | k.nobody, verdict.clamp(max=PARTIAL), verdict)
    return torch.where(q.somebody & k.somebody, verdict, EMPTY)


def _start(tiles: int) -> int:
    """The level at which so many tiles are few enough to look at all pairs of them."""
    return (-(-tiles // _COARSEST) - 1).bit_length()


def _extended(levels: tuple[Level, ...], count: int) -> tuple[Level, ...]:
    return levels + levels[-1:] * (count - len(levels))


def _mostly_full(full: list[Tensor], partial: int, level: int) -> bool:
    area = sum(float(((blocks[:, 2] >> level).double() ** 2).sum()) for blocks in full)
    return partial <= _PARTIAL_SHARE * (area + partial)


def _children(tiles: Tensor, rows: int, columns: int) -> Tensor:
    corner = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]], device=tiles.device)
    children = (2 * tiles[:, None, :] + corner).view(-1, 2)
    return children[(children[:, 0] < rows) & (children[:, 1] < columns)]
