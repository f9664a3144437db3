"""Square blocks of pairs, chosen by a small table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from eyeline.checks import check_whole
from eyeline.errors import InvalidArgument
from eyeline.memory import remembered_property
from eyeline.patterns.base import UNKNOWN, Bounds, Pattern, from_tests
from eyeline.tokens import Points

# What patterns of square blocks share: block numbers of ranges, verdicts, and signatures.
#
# Block (r, c) holds the queries at r·size … r·size + size - 1 and the keys likewise. Where there is
# no block, nobody looks.

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


# Square blocks of pairs, chosen by a small table.

# A layout of up to this many blocks is a value; a larger one is told apart by identity.
MOST_CELLS = 256


@final
@dataclass(frozen=True, eq=False)
class Blocks(Pattern):
    """allows(i, j) = layout[⌊i / size⌋, ⌊j / size⌋], by position; False beside the layout.

    layout: bool (R, C), as a tensor or as lists of rows, one entry for each block of ``size``
    queries and ``size`` keys. It is copied. A layout of at most 256 blocks is a value with the
    text ``blocks([[1, 0], [1, 1]], size=64)``; a larger one makes a bound pattern, which hashes by
    identity and prints as ``blocks(#0)``.

    Raises InvalidArgument for another dtype or rank, for a size below 1, and, where tokens are
    omitted in the call, unless R = C = ⌈length / size⌉. Child et al. 2019; Gray et al. 2017.
    """

    layout: Tensor
    size: int
    _cells: tuple[tuple[int, ...], ...] | None = field(init=False, repr=False)

    def __init__(self, layout: Tensor | Sequence[Sequence[int | bool]], size: int) -> None:
        check_whole("blocks size", size, least=1)
        rows = None if isinstance(layout, Tensor) else _rows(layout)
        given = (
            layout
            if isinstance(layout, Tensor)
            else torch.tensor(rows, dtype=torch.bool, device="cpu")
        )
        table = _table(given)
        object.__setattr__(self, "layout", table)
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "_cells", _cells(table, rows))

    @property
    def bound(self) -> tuple[Pattern, ...]:
        return () if self._cells is not None else (self,)

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, Blocks) or self._cells is None:
            return self is other
        return (self._cells, self.size) == (other._cells, other.size)

    def __hash__(self) -> int:
        return id(self) if self._cells is None else hash((self._cells, self.size))

    def arguments(self) -> dict[str, Any]:
        return {} if self._cells is None else {"layout": self._cells, "size": self.size}

    def allows(self, q: Points, k: Points) -> Tensor:
        return self._entry(q.position // self.size, k.position // self.size)

    def _entry(self, row: Tensor, column: Tensor) -> Tensor:
        rows, columns = self.layout.shape
        inside = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
        chosen = self.layout.to(row.device)[row.clamp(0, rows - 1), column.clamp(0, columns - 1)]
        return chosen & inside

    def verdict(self, q: Bounds, k: Bounds) -> Tensor:
        rows, columns = self.layout.shape
        sums = self._sums.to(q.min.device)

        def count(r0: Tensor, r1: Tensor, c0: Tensor, c1: Tensor) -> Tensor:
            return sums[r1, c1] - sums[r0, c1] - sums[r1, c0] + sums[r0, c0]

        return block_verdict(q, k, size=self.size, shape=(rows, columns), count=count)

    @remembered_property
    def _sums(self) -> Tensor:
        """sums[r, c] = how many blocks are chosen in the first r rows and c columns."""
        sums = self.layout.cumsum(0, dtype=torch.int64).cumsum(1)
        return torch.nn.functional.pad(sums, (1, 0, 1, 0))

    def signature(self, q: Bounds, k: Bounds) -> tuple[Tensor, ...]:
        return block_signature(q, k, size=self.size, bits=self._bits)

    def _bits(self, row: Tensor, first: Tensor, columns: Tensor) -> Tensor:
        word = torch.zeros_like(row + first)
        for n in range(int(columns.max()) if columns.numel() else 0):
            word |= (self._entry(row, first + n) & (n < columns)).long() << n
        return word

    def check_length(self, length: int) -> None:
        wanted = blocks_of(length, self.size)
        if tuple(self.layout.shape) != (wanted, wanted):
            raise InvalidArgument(
                f"the layout is {tuple(self.layout.shape)} blocks of {self.size}; a sequence of "
                f"{length} tokens needs {(wanted, wanted)}; for other queries or keys say where "
                "they stand with q_tokens and k_tokens"
            )


def _table(layout: Tensor) -> Tensor:
    """The layout as a bool tensor of our own on the CPU."""
    if layout.dtype != torch.bool:
        raise InvalidArgument(
            f"blocks layout is {layout.dtype}: it is bool, True = may look; write layout != 0"
        )
    table = layout.detach().to("cpu", copy=True).contiguous()
    if table.dim() != 2 or not table.numel():
        raise InvalidArgument(
            f"blocks layout {tuple(table.shape)}: its shape is (R, C), at least one block; where "
            "heads differ, write PerHead([Blocks(…), …])"
        )
    return table


def _cells(table: Tensor, rows: list[list[bool]] | None) -> tuple[tuple[int, ...], ...] | None:
    """The layout as a value, if it is small. rows: what the table was made of, if not of a tensor.

    It is made at once, since torch.compile cannot read a tensor's numbers later.
    """
    if table.numel() > MOST_CELLS:
        return None
    cells = rows if rows is not None else table.tolist()
    return tuple(tuple(int(cell) for cell in row) for row in cells)


def _rows(layout: object) -> list[list[bool]]:
    if not isinstance(layout, Sequence) or isinstance(layout, str):
        raise InvalidArgument(
            f"blocks layout is a {type(layout).__name__}: give a bool tensor or lists of rows"
        )
    rows: list[list[bool]] = []
    for row in layout:
        if not isinstance(row, Sequence) or isinstance(row, str):
            raise InvalidArgument(f"blocks layout has the row {row!r}: a row is a list of 0 and 1")
        for cell in row:
            if not isinstance(cell, int) or cell not in (0, 1):
                raise InvalidArgument(f"blocks layout has the entry {cell!r}: it holds 0 and 1")
        if rows and len(row) != len(rows[0]):
            raise InvalidArgument(
                f"blocks layout has rows of {len(rows[0])} and {len(row)} blocks: all are as long"
            )
        rows.append([bool(cell) for cell in row])
    return rows
