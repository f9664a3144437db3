"""How many of some scattered points lie in a rectangle, in a logarithm of steps."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

# Up to this many points are looked at one by one.
_FEW = 48


@final
class Counts:
    """A table with the same number of points in each row, ready to be counted.

    columns: int64 (R, m), the columns of the points of each row, in 0 … C - 1. A wavelet matrix
    (Claude & Navarro 2012): for each bit of the column, from the highest, the points sorted stably
    by the bits above it, and how many before each have a 0 there. R·m·log₂C numbers.
    """

    def __init__(self, columns: Tensor, population: int) -> None:
        self._each = columns.shape[1]
        self._columns = columns.flatten()
        self._levels: list[tuple[int, Tensor]] = []
        values = self._columns
        for bit in reversed(range(population.bit_length())):
            low = ((values >> bit) & 1) == 0
            zeros = torch.nn.functional.pad(low.cumsum(0, dtype=torch.int32), (1, 0))
            self._levels.append((bit, zeros))
            values = torch.cat([values[low], values[~low]])

    def __call__(self, r0: Tensor, r1: Tensor, c0: Tensor, c1: Tensor) -> Tensor:
        """How many points lie in rows r0 … r1 - 1 and columns c0 … c1 - 1; all broadcast."""
        first, end = r0 * self._each, r1 * self._each
        most = int((end - first).max()) if first.numel() else 0
        if most <= _FEW and len(self._columns):
            return self._one_by_one(first, end, c0, c1, most)
        return self._before(first, end, c1) - self._before(first, end, c0)

    def _one_by_one(self, first: Tensor, end: Tensor, c0: Tensor, c1: Tensor, most: int) -> Tensor:
        columns = self._columns.to(first.device)
        count = torch.zeros_like(first + c0)
        for place in (first + n for n in range(most)):
            column = columns[place.clamp(max=len(columns) - 1)]
            count += (place < end) & (column >= c0) & (column < c1)
        return count

    def _before(self, first: Tensor, end: Tensor, column: Tensor) -> Tensor:
        """How many of the points first … end - 1 lie before a column."""
        count = torch.zeros_like(first + column)
        for bit, zeros in self._levels:
            zeros = zeros.to(first.device)
            low_first, low_end = zeros[first].long(), zeros[end].long()
            high = ((column >> bit) & 1) == 1
            # Where the column's bit is 1, all points with a 0 lie before it.
            count = count + torch.where(high, low_end - low_first, 0)
            first = torch.where(high, zeros[-1] + first - low_first, low_first)
            end = torch.where(high, zeros[-1] + end - low_end, low_end)
        return count
