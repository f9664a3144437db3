"""The bounds of every tile of a sequence, and of pairs of tiles, pairs of pairs, up to the whole."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from eyeline.patterns import Bounds
from eyeline.patterns.bounds import UNBOUNDED
from eyeline.tokens import NOBODY, Tokens


class Level(NamedTuple):
    """What is known of the tiles of one size: (T,) each."""

    bounds: Bounds
    somebody: Tensor  # the tile holds at least one real token
    nobody: Tensor  # the tile holds at least one empty slot

    def take(self, index: Tensor) -> Level:
        return Level(Bounds(*(b[index] for b in self.bounds)), *(x[index] for x in self[1:]))


def pyramid(tokens: Tokens, tile: int) -> list[Level]:
    """Levels of tiles of ``tile``, 2·tile, 4·tile, … slots, the finest first, up to one tile.

    tokens: one sequence (no batch), at least one slot. Time and memory are linear in its length.
    """
    levels = [_finest(tokens, tile)]
    while len(levels[-1].somebody) > 1:
        levels.append(_halve(levels[-1]))
    return levels


def _finest(tokens: Tokens, tile: int) -> Level:
    position = _tiled(tokens.positions, tile)
    empty = position == NOBODY
    document = None if tokens.documents is None else _tiled(tokens.documents, tile)
    zero = torch.zeros(len(position), dtype=torch.int64, device=position.device)
    some_empty = empty.any(1)
    if not bool(some_empty.any()):
        spans = [(zero, zero) if x is None else x.aminmax(dim=1) for x in (position, document)]
        bounds = Bounds(*spans[0], *spans[1])
        return Level(bounds, ~some_empty, some_empty)
    parts: list[Tensor] = []
    for x in (position, document):
        if x is None:
            parts += [zero, zero]
        else:
            parts += [
                x.masked_fill(empty, UNBOUNDED).amin(1),
                x.masked_fill(empty, -UNBOUNDED).amax(1),
            ]
    return Level(Bounds(*parts), ~empty.all(1), some_empty)


def _tiled(values: Tensor, tile: int) -> Tensor:
    """(L,) as (tiles, tile); the ragged end repeats the last slot, which changes no bound."""
    missing = -len(values) % tile
    if missing:
        values = torch.cat([values, values[-1:].expand(missing)])
    return values.view(-1, tile)


def _halve(level: Level) -> Level:
    def joined(x: Tensor, combine: str) -> Tensor:
        if len(x) % 2:
            x = torch.cat([x, x[-1:]])
        pairs = x.view(-1, 2)
        return getattr(pairs, combine)(1)  # type: ignore[no-any-return]

    b = level.bounds
    bounds = Bounds(
        joined(b.min, "amin"),
        joined(b.max, "amax"),
        joined(b.document_min, "amin"),
        joined(b.document_max, "amax"),
    )
    return Level(bounds, joined(level.somebody, "any"), joined(level.nobody, "any"))
