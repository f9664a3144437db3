"""The picture of a pattern at any length: what share of the pairs each cell of a grid allows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final

import torch
from torch import Tensor

from eyeline.budgets import budgets
from eyeline.checks import check_size
from eyeline.patterns import EMPTY, FULL, PARTIAL, Bounds, Pattern
from eyeline.patterns.base import UNKNOWN
from eyeline.planning.dense import described, on_host, settled
from eyeline.planning.palette import evaluate, palette
from eyeline.planning.planner import one_sequence
from eyeline.planning.refine import Level, Tiling, pyramid, verdicts
from eyeline.tokens import NOBODY, Tokens

# Shares of large tiles, estimated from strips at fixed places: a few queries, many keys.
#
# A strip is low and wide because patterns repeat along the keys: under a stride every query of a
# strip that is wider than the stride meets its part of the keys. Strips with equal signatures share
# one mask, as tiles of a plan do.


_HEIGHT, _WIDTH = 8, 1024
# No more strips than this in one tile.
_MOST = 16
# Steps that spread places evenly over a square: powers of 1 / 1.32471…, the root of x³ = x + 1.
_DOWN, _ACROSS = 0.7548776662466927, 0.5698402909980532
# How the places shift from a tile to the next one below, and to the right: irrational, and
# differently along both sides, so that no line of tiles is met at one place only.
_SHIFTS = ((_DOWN, _ACROSS), (2**0.5 - 1, 3**0.5 - 1))


def sampled(pattern: Pattern, q: Tokens, k: Tokens, tiles: Tensor, edge: int) -> Tensor:
    """The share of allowed pairs in each tile of ``edge`` slots, about: float64 (N,).

    tiles: (N, 2), row and column of each. Time grows with N, not with the tiles' size.
    """
    first = tiles * edge
    sides = (first.new_tensor([q.length, k.length]) - first).clamp(max=edge)
    whole = (sides == edge).all(1)
    share = torch.zeros(len(tiles), dtype=torch.float64)
    share[whole] = _of_whole(pattern, q, k, tiles[whole], edge)
    share[~whole] = _scattered(pattern, q, k, first[~whole], sides[~whole])
    return share


def _of_whole(pattern: Pattern, q: Tokens, k: Tokens, tiles: Tensor, edge: int) -> Tensor:
    width = edge
    while width > _WIDTH:
        width = -(-width // 2)
    shape = min(_HEIGHT, edge), width
    strips = min(max(budgets.strips // max(len(tiles), 1), 1), _MOST)
    first = _places(tiles, edge, strips, shape)
    # Where the edge is no multiple of the strips', the last ones reach past it.
    first = first.minimum(first.new_tensor([q.length - shape[0], k.length - shape[1]]))
    return _shares(pattern, q, k, first, shape).view(-1, strips).mean(1)


def _places(tiles: Tensor, edge: int, strips: int, shape: tuple[int, int]) -> Tensor:
    """The first query and key of ``strips`` strips in each tile: (N · strips, 2)."""
    step = torch.tensor([_DOWN, _ACROSS], dtype=torch.float64)
    start = tiles.double() @ torch.tensor(_SHIFTS, dtype=torch.float64)
    place = (start[:, None] + torch.arange(strips)[:, None] * step + step / 2) % 1
    # The strips that a tile is divided into, each as likely as the others; they lie at multiples
    # of a few slots, so that fewer of them differ.
    sides = torch.tensor(shape)
    within = (place * -(-edge // sides)).long() * sides
    return (tiles[:, None] * edge + within).view(-1, 2)


def _shares(
    pattern: Pattern, q: Tokens, k: Tokens, first: Tensor, shape: tuple[int, int]
) -> Tensor:
    if not (_consecutive(q) and _consecutive(k)):
        return _scattered(pattern, q, k, first, first.new_tensor([shape]).expand_as(first))
    ranges = _bounds(q, first[:, 0], shape[0]), _bounds(k, first[:, 1], shape[1])
    verdict = pattern.verdict(*ranges).broadcast_to(first.shape[:1])
    share = (verdict == FULL).double()
    partial = (verdict == PARTIAL).nonzero()[:, 0]
    share[partial] = _shared(pattern, q, k, first[partial], shape)
    return share


def _consecutive(tokens: Tokens) -> bool:
    """Whether the slots stand at consecutive positions of one document, nobody among them."""
    position = tokens.positions
    if tokens.documents is not None or tokens.segments is not None or int(position[0]) == NOBODY:
        return False
    return bool((position[1:] - position[:-1] == 1).all())


def _bounds(tokens: Tokens, first: Tensor, count: int) -> Bounds:
    return Bounds.of_positions(tokens.positions[first], tokens.positions[first + count - 1])


def _shared(
    pattern: Pattern, q: Tokens, k: Tokens, first: Tensor, shape: tuple[int, int]
) -> Tensor:
    """The shares of PARTIAL strips: those that are met most often are looked at in full."""
    ranges = _bounds(q, first[:, 0], shape[0]), _bounds(k, first[:, 1], shape[1])
    signature = pattern.signature(*ranges)
    sides = first.new_tensor([shape]).expand_as(first)
    if signature is None or not len(first):
        return _scattered(pattern, q, k, first, sides)
    table = torch.stack([column.broadcast_to(first.shape[:1]) for column in signature], 1)
    _, code, met = _hashed(table).unique(return_inverse=True, return_counts=True)
    example = torch.zeros_like(met).scatter_(0, code, torch.arange(len(code)))
    known = (table[example] != UNKNOWN).all(1)
    most = (met * known).argsort(descending=True)[
        : max(budgets.picture_pairs // (shape[0] * shape[1]), 1)
    ]
    chosen = most[known[most]]
    found = torch.full(met.shape, -1.0, dtype=torch.float64)
    queries, keys = (first[example[chosen], i, None] + torch.arange(shape[i]) for i in range(2))
    found[chosen] = _share(pattern, q, k, queries, keys)
    share = found[code]
    rest = (share < 0).nonzero()[:, 0]
    share[rest] = _scattered(pattern, q, k, first[rest], sides[rest])
    return share


def _hashed(table: Tensor) -> Tensor:
    """One number for each row; two rows that share one by chance do no harm to an estimate."""
    key = torch.zeros_like(table[:, 0])
    for column in table.unbind(1):
        key = (key ^ column) * 0x1E3779B97F4A7C15
        key = key ^ (key >> 29)
    return key


def _scattered(pattern: Pattern, q: Tokens, k: Tokens, first: Tensor, sides: Tensor) -> Tensor:
    """The shares of rectangles, about, by looking at some queries and keys of each.

    first, sides: (N, 2), the first query and key, and how many there are.
    """
    if not len(first):
        return torch.zeros(0, dtype=torch.float64)
    most = max(budgets.picture_pairs // len(first), 4)
    tall, wide = sides.amax(0).tolist()
    height = min(tall, int(most**0.5))
    queries = _stretched(first[:, :1], sides[:, :1], height, _DOWN)
    keys = _stretched(first[:, 1:], sides[:, 1:], min(wide, most // height), _ACROSS)
    return _share(pattern, q, k, queries, keys)


def _stretched(first: Tensor, size: Tensor, count: int, step: float) -> Tensor:
    """One slot from each of ``count`` equal stretches of first … first + size - 1: (N, count)."""
    number = torch.arange(count)
    place = (number + (number * step + first * step) % 1) / count
    return first + (place * size).long().minimum(size - 1)


def _share(pattern: Pattern, q: Tokens, k: Tokens, queries: Tensor, keys: Tensor) -> Tensor:
    seen = pattern.sees(q.at(queries[:, :, None]), k.at(keys[:, None, :]))
    return seen.double().mean((1, 2))


# How many pairs of each cell of a grid a pattern allows: counted, or estimated from samples.
#
# Verdicts tell which cells hold nothing and which hold everything. The others are split, from
# coarse to fine, as long as there are few; what is then left undecided is sampled.


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
        if level == 0 or 4 * len(tiles) > budgets.picture_tiles:
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
    if len(rest) * tile**2 <= budgets.picture_pairs:
        found[rest] = evaluate(pattern, q, k, tiles[rest], tile).sum((1, 2)).double()
        return found, counted
    found[rest] = sampled(pattern, q, k, tiles[rest], tile) * _area(sides, tiles[rest], 0)
    counted[rest] = False
    return found, counted


CELLS = 64
"""How many cells a picture has along its longer side, at most."""

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
    check_size("cells", cells)
    q, k = described(pattern, length, key_length, q_tokens, k_tokens)
    pattern = settled(pattern, q, k)
    q, k = one_sequence(pattern, None, None, q, k)
    return _made(pattern, q.host, k.host, cells)


@on_host
def _made(pattern: Pattern, q: Tokens, k: Tokens, cells: int) -> Picture:
    cell = max(-(-max(q.length, k.length) // cells), 1)
    if q.length * k.length <= budgets.picture_whole:
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
