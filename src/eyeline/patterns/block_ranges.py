"""What patterns of square blocks share: block numbers of ranges, verdicts, and signatures.

Block (r, c) holds the queries at r·size … r·size + size - 1 and the keys likewise. Where there is
no block, nobody looks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from eyeline.patterns.bounds import UNKNOWN, Bounds
from eyeline.patterns.verdicts import from_tests

# A tile that touches more blocks than this on a side has no signature.
_MOST_ROWS, _MOST_COLUMNS = 9, 56


def blocks_of(length: int, size: int) -> int:
    """⌈length / size⌉: how many blocks a sequence has on a side."""
    return -(-length // size)


def block_verdict(
    q: Bounds, k: Bounds, *, size: int, shape: tuple[int, int], count: Callable[..., Tensor]
) -> Tensor:
    """The verdict about ranges of tokens, exactly.

    shape: how many blocks there are, (R, C). count(r0, r1, c0, c1): how many blocks of rows
    r0 … r1 - 1 and columns c0 … c1 - 1 are chosen.
    """
    (r0, r1, q_inside), (c0, c1, k_inside) = (
        _clipped(x, size, blocks) for x, blocks in zip((q, k), shape, strict=True)
    )
    chosen = count(r0, r1, c0, c1)
    some = chosen > 0
    full = (chosen == (r1 - r0) * (c1 - c0)) & q_inside & k_inside
    return from_tests(full=some & full, some=some)


def _clipped(x: Bounds, size: int, blocks: int) -> tuple[Tensor, Tensor, Tensor]:
    """First and end block of each range among those there are, and whether no other is touched."""
    first, last = x.min // size, x.max // size
    low = first.clamp(0, blocks)
    end = torch.maximum((last + 1).clamp(0, blocks), low)
    return low, end, (first >= 0) & (last < blocks)


def block_signature(
    q: Bounds, k: Bounds, *, size: int, bits: Callable[..., Tensor]
) -> tuple[Tensor, ...]:
    """Where a tile lies within its blocks, and which of the blocks it touches are chosen.

    bits(row, first, columns): the blocks first … first + columns - 1 of a row as one integer,
    the first of them its lowest bit; columns <= 56.
    """
    (row, rows, q_phase), (column, columns, k_phase) = (_touched(x, size) for x in (q, k))
    known = (rows <= _MOST_ROWS) & (columns <= _MOST_COLUMNS)
    rows, width = (torch.where(known, x, 0) for x in (rows, columns))
    depth = int(rows.max()) if rows.numel() else 0
    words = [torch.where(n < rows, bits(row + n, column, width), 0) for n in range(depth)]
    return tuple(torch.where(known, x, UNKNOWN) for x in (q_phase, k_phase, *words))


def _touched(x: Bounds, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """First block and number of blocks of each range, and where the range begins in the first."""
    first = x.min // size
    count = x.max // size - first + 1
    # Within one block it does not matter where.
    return first, count, torch.where(count > 1, x.min % size, -1)
