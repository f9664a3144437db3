"""Shares of large tiles, estimated from strips at fixed places: a few queries, many keys.

A strip is low and wide because patterns repeat along the keys: under a stride every query of a
strip that is wider than the stride meets its part of the keys. Strips with equal signatures share
one mask, as tiles of a plan do.
"""

from __future__ import annotations

import torch
from torch import Tensor

from eyeline.patterns import FULL, PARTIAL, Bounds, Pattern
from eyeline.patterns.base import UNKNOWN
from eyeline.tokens import NOBODY, Tokens

_HEIGHT, _WIDTH = 8, 1024
# No more strips than this in all, and in one tile; no more pairs are looked at one by one.
_STRIPS = 1 << 17
_MOST = 16
_PAIRS = 1 << 22
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
    strips = min(max(_STRIPS // max(len(tiles), 1), 1), _MOST)
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
    if tokens.documents is not None or int(position[0]) == NOBODY:
        return False
    return bool((position[1:] - position[:-1] == 1).all())


def _bounds(tokens: Tokens, first: Tensor, count: int) -> Bounds:
    position, document = tokens.positions, torch.zeros_like(first)
    return Bounds(position[first], position[first + count - 1], document, document)


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
    most = (met * known).argsort(descending=True)[: max(_PAIRS // (shape[0] * shape[1]), 1)]
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
    most = max(_PAIRS // len(first), 4)
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
