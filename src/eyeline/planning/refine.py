"""From one coarse range to tiles: ask for verdicts, drop EMPTY, keep FULL, split PARTIAL."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eyeline.memory import remembered
from eyeline.patterns import EMPTY, FULL, PARTIAL, Bounds, Pattern
from eyeline.patterns.base import UNBOUNDED
from eyeline.planning.dense import extremes, rows_at
from eyeline.tokens import NOBODY, Tokens

# The bounds of every tile of a sequence, of pairs of tiles, pairs of pairs, up to the whole.


@dataclass(frozen=True, eq=False)
class Level:
    """What is known of the tiles of one size.

    table: int64, one row a tile: the least and greatest number of each column that is ``named``,
    in its order; then whether it holds a real token, and whether it holds padding. One table, so
    that looking up many tiles is one operation. modulus: of the residues, if they are named.
    """

    table: Tensor
    named: tuple[str, ...]
    modulus: int = 1

    def __len__(self) -> int:
        return len(self.table)

    def take(self, index: Tensor) -> Level:
        return Level(rows_at(self.table, index), self.named, self.modulus)

    @property
    def bounds(self) -> Bounds:
        columns = self.table.unbind(1)
        ends = {name: columns[2 * i : 2 * i + 2] for i, name in enumerate(self.named)}
        one = (columns[0].new_zeros(()).expand_as(columns[0]),) * 2
        (low, high), (first, last) = ends["position"], ends.get("document", one)
        least, most = ends.get("segment", one)
        if self.modulus == 1:
            return Bounds(low, high, first, last, least, most)
        residues = ends["residue"]
        known = low, high, first, last, least, most
        return Bounds(*known, residues[0], residues[1], self.modulus)

    @property
    def somebody(self) -> Tensor:
        return self.table[:, -2] > 0

    @property
    def nobody(self) -> Tensor:
        return self.table[:, -1] > 0


@remembered(8)
def pyramid(
    tokens: Tokens, tile: int, modulus: int = 1, most: int | None = None
) -> tuple[Level, ...]:
    """Levels of tiles of ``tile``, 2·tile, 4·tile, … slots, the finest first, up to one tile.

    tokens: one sequence (no batch), at least one slot. modulus: by which it was ordered. most: how
    many levels are asked for; all if None. Time and memory are linear in the length. The last few
    are remembered: the parts of a plan share them.
    """
    levels = [_finest(tokens, tile, modulus)]
    while len(levels[-1]) > 1 and (most is None or len(levels) < most):
        levels.append(_halve(levels[-1]))
    return tuple(levels)


def _finest(tokens: Tokens, tile: int, modulus: int) -> Level:
    columns = _columns(tokens, tile, modulus)
    position = columns["position"]
    ends = [bound for column in columns.values() for bound in extremes(column)]
    holes = ends[0] == NOBODY
    table = torch.stack([*ends, ends[1] != NOBODY, holes], 1)
    for index in holes.nonzero()[:, 0].split(1 << 16):
        empty = position[index] == NOBODY
        real = [_ends_of_real(column[index], empty) for column in columns.values()]
        table[index, : len(ends)] = torch.cat(real, 1)
    return Level(table, tuple(columns), modulus)


def _columns(tokens: Tokens, tile: int, modulus: int) -> dict[str, Tensor]:
    """What is known of the slots of each tile, by name, (tiles, tile) each."""
    named = {
        "position": tokens.positions, "document": tokens.documents, "segment": tokens.segments,
    }  # fmt: skip
    columns = {name: _tiled(column, tile) for name, column in named.items() if column is not None}
    if modulus > 1:
        columns["residue"] = columns["position"] % modulus
    return columns


def _ends_of_real(column: Tensor, empty: Tensor) -> Tensor:
    """The least and greatest number of the real tokens of some tiles, (len(column), 2)."""
    least = column.masked_fill(empty, UNBOUNDED).amin(1)
    return torch.stack([least, column.masked_fill(empty, -UNBOUNDED).amax(1)], 1)


def _tiled(values: Tensor, tile: int) -> Tensor:
    """(L,) as (tiles, tile); the ragged end repeats the last slot, which changes no bound."""
    missing = -len(values) % tile
    if missing:
        values = torch.cat([values, values[-1:].expand(missing)])
    return values.view(-1, tile)


def _halve(level: Level) -> Level:
    table = level.table
    if len(table) % 2:
        table = torch.cat([table, table[-1:]])
    least, most = extremes(table.view(-1, 2, table.shape[1]))
    table = most.clone()
    lower = slice(0, 2 * len(level.named), 2)  # every other column of the ends is a least one
    table[:, lower] = least[:, lower]
    return Level(table, level.named, level.modulus)


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
        whole = rows_at(frontier, verdict == FULL)
        frontier = rows_at(frontier, verdict == PARTIAL)
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
        whole, tiles = (rows_at(tiles, verdict == kind) for kind in (FULL, PARTIAL))
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
    return rows_at(children, (children[:, 0] < rows) & (children[:, 1] < columns))
