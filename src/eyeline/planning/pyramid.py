"""The bounds of every tile of a sequence, of pairs of tiles, pairs of pairs, up to the whole."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from eyeline.patterns import Bounds
from eyeline.patterns.base import UNBOUNDED
from eyeline.tokens import NOBODY, Tokens


@dataclass(frozen=True, eq=False)
class Level:
    """What is known of the tiles of one size.

    table: int64 (T, 6 or 8), one row a tile: least and greatest position, least and greatest
    document, whether it holds a real token, whether it holds an empty slot; with a modulus also
    the least and greatest residue of its positions. One table, so that looking up many tiles is
    one operation.
    """

    table: Tensor
    modulus: int = 1

    def __len__(self) -> int:
        return len(self.table)

    def take(self, index: Tensor) -> Level:
        return Level(self.table[index], self.modulus)

    @property
    def bounds(self) -> Bounds:
        low, high, first, last = self.table[:, :4].unbind(1)
        if self.modulus == 1:
            return Bounds(low, high, first, last)
        return Bounds(low, high, first, last, self.table[:, 6], self.table[:, 7], self.modulus)

    @property
    def somebody(self) -> Tensor:
        return self.table[:, 4] > 0

    @property
    def nobody(self) -> Tensor:
        return self.table[:, 5] > 0


@lru_cache(maxsize=8)
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
    position = _tiled(tokens.positions, tile)
    first, last = position.aminmax(dim=1)
    holes = first == NOBODY
    columns = [first, last]
    if tokens.documents is None:
        columns += [torch.zeros_like(first)] * 2
    else:
        columns += _tiled(tokens.documents, tile).aminmax(dim=1)
    columns += [last != NOBODY, holes]
    if modulus > 1:
        columns += (position % modulus).aminmax(dim=1)
    table = torch.stack(columns, 1)
    of_bounds = torch.tensor([0, 1, 2, 3, 6, 7] if modulus > 1 else [0, 1, 2, 3])
    for index in holes.nonzero()[:, 0].split(1 << 16):
        found = _without_nobody(tokens, position, tile, index, modulus)
        table[index[:, None], of_bounds] = found
    return Level(table, modulus)


def _without_nobody(
    tokens: Tokens, position: Tensor, tile: int, index: Tensor, modulus: int
) -> Tensor:
    """The bounds of the real tokens of some tiles, (len(index), 4 or 6)."""
    position = position[index]
    empty = position == NOBODY
    document = torch.zeros_like(position)
    if tokens.documents is not None:
        document = _tiled(tokens.documents, tile)[index]
    known = [position, document, position % modulus] if modulus > 1 else [position, document]
    columns = []
    for values in known:
        columns.append(values.masked_fill(empty, UNBOUNDED).amin(1))
        columns.append(values.masked_fill(empty, -UNBOUNDED).amax(1))
    return torch.stack(columns, 1)


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
    least, most = table.view(-1, 2, table.shape[1]).aminmax(dim=1)
    table = most.clone()
    for column in (0, 2, 6)[: table.shape[1] // 2 - 1]:
        table[:, column] = least[:, column]
    return Level(table, level.modulus)
