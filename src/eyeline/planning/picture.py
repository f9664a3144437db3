"""The picture of a pattern at any length: what share of the pairs each cell of a grid allows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument
from eyeline.patterns import EMPTY, FULL, PARTIAL, Pattern
from eyeline.planning.cells import Counts, counted, scanned
from eyeline.planning.dense import described, settled
from eyeline.planning.host import on_host
from eyeline.planning.planner import one_sequence
from eyeline.tokens import Tokens

CELLS = 64
"""How many cells a picture has along its longer side, at most."""

# Up to this many pairs are looked at one by one.
_COUNTED = 1 << 21
# The smallest tiles that cells are split into have at least this edge.
_TILE = 64
# In a terminal: rows of two cells.
_HALVES = {(0, 0): " ", (1, 0): "▀", (0, 1): "▄", (1, 1): "█"}
_SHADES = "░▒▓"


@final
@dataclass(frozen=True, eq=False)
class Picture:
    """A grid of cells: queries from top to bottom, keys from left to right.

    shares: float64 (rows, columns), how much of each cell's pairs is allowed, from 0 to 1.
    kinds: uint8 of the same shape, EMPTY, PARTIAL or FULL: no pair, some, every one. A cell with
        one allowed pair is never EMPTY.
    exact: bool of the same shape. Where False the share is an estimate from samples at fixed
        places, and a PARTIAL cell may hold nothing.
    queries, keys: L and S. cell: cell (r, c) holds the queries r·cell … (r + 1)·cell - 1 and the
        keys c·cell … (c + 1)·cell - 1; the last ones may be cut short.
    """

    shares: Tensor
    kinds: Tensor
    exact: Tensor
    queries: int
    keys: int
    cell: int

    @cached_property
    def areas(self) -> Tensor:
        """How many pairs lie in each cell, allowed or not: float64 (rows, columns)."""
        return _areas(self.queries, self.keys, self.cell)

    def text(self) -> str:
        """``draw`` of this picture."""
        return draw(self)


def picture(
    pattern: Pattern,
    length: int | None = None,
    key_length: int | None = None,
    *,
    cells: int = CELLS,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
) -> Picture:
    """What share of the pairs each cell of a grid allows, for one sequence and one head.

    cells: how many along the longer side, at most; all have one size. Up to 2 million pairs are
    counted one by one, with one cell a pair where the length allows it. For longer inputs
    verdicts tell which cells hold nothing or everything, and the others are split; what is then
    still undecided is sampled. Time and memory are linear in the length, never n².

    Other arguments and errors as for ``plan``.
    """
    if cells < 1:
        raise InvalidArgument(f"cells={cells}: at least 1")
    q, k = described(pattern, length, key_length, q_tokens, k_tokens)
    pattern = settled(pattern, q, k)
    q, k = one_sequence(pattern, None, None, q, k)
    return _made(pattern, q.host, k.host, cells)


@on_host
def _made(pattern: Pattern, q: Tokens, k: Tokens, cells: int) -> Picture:
    cell = max(-(-max(q.length, k.length) // cells), 1)
    if q.length * k.length <= _COUNTED:
        return _picture(counted(pattern, q, k, cell), q.length, k.length, cell)
    depth = max((cell // _TILE).bit_length() - 1, 0)
    tile = -(-cell >> depth)
    found = scanned(pattern, q, k, tile=tile, depth=depth)
    return _picture(found, q.length, k.length, tile << depth)


def _picture(found: Counts, queries: int, keys: int, cell: int) -> Picture:
    areas = _areas(queries, keys, cell)
    kinds = torch.full_like(areas, PARTIAL, dtype=torch.uint8)
    kinds[found.exact & (found.pairs == 0)] = EMPTY
    kinds[found.exact & (found.pairs == areas)] = FULL
    return Picture(found.pairs / areas, kinds, found.exact, queries, keys, cell)


def _areas(queries: int, keys: int, cell: int) -> Tensor:
    sides = [
        (size - cell * torch.arange(-(-size // cell), dtype=torch.float64)).clamp(max=cell)
        for size in (queries, keys)
    ]
    return sides[0][:, None] * sides[1]


@on_host
def draw(picture: Picture) -> str:
    """The picture in characters, in at most 32 lines of 66: for a terminal.

    Where cells are single pairs a character is two of them, one above the other; else it is some
    cells, as dark as their pairs are many: " " none, ░▒▓ some, █ all of them.
    """
    if picture.cell == 1 and max(picture.kinds.shape) <= CELLS:
        return _framed(_halves(picture.kinds == FULL))
    wide = -(-max(picture.kinds.shape) // CELLS)
    return _framed(_shades(picture, 2 * wide, wide))


def _framed(lines: list[str]) -> str:
    return "\n".join(f"▏{line}▕" for line in lines)


def _halves(full: Tensor) -> list[str]:
    padded = torch.nn.functional.pad(full, (0, 0, 0, len(full) % 2)).int()
    pairs = zip(padded[::2].tolist(), padded[1::2].tolist(), strict=True)
    return ["".join(map(_HALVES.__getitem__, zip(*pair, strict=True))) for pair in pairs]


def _shades(picture: Picture, tall: int, wide: int) -> list[str]:
    """One character for ``tall`` · ``wide`` cells."""
    area = _summed(picture.areas, tall, wide)
    share = _summed(picture.areas * picture.shares, tall, wide) / area
    some = _summed((picture.kinds != EMPTY).double(), tall, wide) > 0
    every = _summed((picture.kinds != FULL).double(), tall, wide) == 0
    index = (share * len(_SHADES)).long().clamp(max=len(_SHADES) - 1) + 1
    index = torch.where(every, len(_SHADES) + 1, torch.where(some, index, 0))
    return ["".join(f" {_SHADES}█"[shade] for shade in line) for line in index.tolist()]


def _summed(cells: Tensor, tall: int, wide: int) -> Tensor:
    down, across = -cells.shape[0] % tall, -cells.shape[1] % wide
    padded = torch.nn.functional.pad(cells, (0, across, 0, down))
    rows, columns = padded.shape
    return padded.view(rows // tall, tall, columns // wide, wide).sum((1, 3))
