"""A few blocks of keys for each block of queries, drawn at random once and for all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from eyeline.budgets import budgets
from eyeline.checks import check_whole
from eyeline.errors import InvalidArgument
from eyeline.hashing import absorb, sample, seeded
from eyeline.memory import remembered
from eyeline.patterns.base import Bounds, MaskMod, Pattern
from eyeline.patterns.blocks import block_signature, block_verdict, blocks_of
from eyeline.tokens import Points

# How many of some scattered points lie in a rectangle, in a logarithm of steps.


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
            # columns[place] would be shared among threads, which wait for each other.
            index = place.clamp(max=len(columns) - 1).flatten()
            column = columns.index_select(0, index).view_as(place)
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


@final
@dataclass(frozen=True)
class Random(Pattern):
    """allows(i, j) = (⌊j / size⌋ is among the blocks drawn for ⌊i / size⌋), by position.

    Each block of ``size`` queries looks at ``blocks_per_row`` distinct blocks of keys, drawn
    uniformly from the ⌈length / size⌉ there are, without regard to order: causal only with
    ``Causal() &``. The draw is a pure function of (seed, length, layer, head), the same on every
    machine and in whatever order it is asked for. Zaheer et al. 2020 (BigBird, "random attention").

    head, length: None means that each head, and each length of sequence, has a draw of its own;
    the call fixes them. To read a text in steps, fix the length: ``pattern.of_length(n)``. Beyond
    it nobody looks.

    Blocks smaller than a tile of 64 fill little of each tile they touch. With a size of 1 every
    tile is touched, and the time is that of dense attention.

    Raises InvalidArgument for a size below 1, other negative numbers, and more blocks than exist.
    """

    blocks_per_row: int
    size: int
    seed: int = 0
    layer: int = 0
    head: int | None = None
    length: int | None = None

    def __post_init__(self) -> None:
        check_whole("random blocks_per_row", self.blocks_per_row, least=0)
        check_whole("random size", self.size, least=1)
        for name in ("seed", "layer"):
            check_whole(f"random {name}", getattr(self, name), least=0)
        for name in ("head", "length"):
            if getattr(self, name) is not None:
                check_whole(f"random {name}", getattr(self, name), least=0)
        if self.length is not None:
            self._check_blocks(self.length)

    @property
    def varies_by(self) -> frozenset[str]:
        return frozenset(name for name in ("head", "length") if getattr(self, name) is None)

    def at(self, batch: int, head: int) -> Pattern:
        return self if self.head is not None else replace(self, head=head)

    def of_length(self, length: int) -> Pattern:
        return self if self.length is not None else replace(self, length=length)

    def check_length(self, length: int) -> None:
        if self.length is None:
            self._check_blocks(length)
        elif length > self.length:
            raise InvalidArgument(
                f"{self} was drawn for {self.length} tokens; the sequence has {length}"
            )

    def _check_blocks(self, length: int) -> None:
        there = blocks_of(length, self.size)
        # Nothing is drawn where there is nothing to look at.
        if length and self.blocks_per_row > there:
            raise InvalidArgument(
                f"random blocks_per_row={self.blocks_per_row} is more than the {there} blocks of "
                f"size={self.size} in {length} tokens"
            )

    def allows(self, q: Points, k: Points) -> Tensor:
        return self._draw().holds(q.position // self.size, k.position // self.size, self._one())

    def mask_mod(self) -> MaskMod:
        """As for every pattern; while ``head`` is None, it is the call's."""
        draw, size, own = self._draw(), self.size, self.head

        def mask_mod(b: Any, h: Any, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return draw.holds(q_idx // size, kv_idx // size, own if own is not None else h)

        return mask_mod

    def verdict(self, q: Bounds, k: Bounds) -> Tensor:
        blocks = 0 if self.varies_by else blocks_of(self._length(), self.size)
        if self.varies_by or blocks > budgets.drawn_blocks:
            return super().verdict(q, k)
        return block_verdict(q, k, size=self.size, shape=(blocks, blocks), count=_counts(self))

    def signature(self, q: Bounds, k: Bounds) -> tuple[Tensor, ...] | None:
        if self.varies_by:
            return None
        draw, head = self._draw(), self._one()
        return block_signature(q, k, size=self.size, bits=partial(draw.bits, head=head))

    def _draw(self) -> _Draw:
        length = self._length()
        blocks = blocks_of(length, self.size)
        count = min(self.blocks_per_row, blocks)
        return _Draw(seeded(self.seed, length, self.layer), count, blocks)

    def _length(self) -> int:
        if self.length is None:
            raise InvalidArgument(
                f"{self} differs per length of sequence: draw it for a length: pattern.of_length(n)"
            )
        return self.length

    def _one(self) -> int:
        if self.head is None:
            raise InvalidArgument(
                f"{self} differs per head: choose one with pattern.at(batch, head)"
            )
        return self.head


class _Draw(NamedTuple):
    """Which blocks are drawn, for all heads: nothing is stored, they are hashed when asked for.

    start: what the hash begins with. ``each`` of ``blocks`` are drawn for each row of blocks.
    """

    start: int
    each: int
    blocks: int

    def rows(self, row: Tensor, head: int | Tensor) -> list[Tensor]:
        """The blocks drawn for some rows of blocks: ``each`` tensors of their shape."""
        state = absorb(torch.full_like(row, self.start, dtype=torch.int64), head)
        return sample(absorb(state, row), self.each, self.blocks)

    def holds(self, row: Tensor, column: Tensor, head: int | Tensor) -> Tensor:
        inside = (row >= 0) & (row < self.blocks)
        drawn = (column == x for x in self.rows(row, head))
        return inside & reduce(torch.logical_or, drawn, column != column)

    def bits(self, row: Tensor, first: Tensor, columns: Tensor, *, head: int) -> Tensor:
        """The blocks first … first + columns - 1 of a row as one integer."""
        word = torch.zeros_like(row + first)
        inside = (row >= 0) & (row < self.blocks)
        for drawn in self.rows(row, head):
            place = drawn - first
            there = inside & (place >= 0) & (place < columns)
            word |= there.long() << place.clamp(0, 62)
        return word


@remembered(32)
def _counts(pattern: Random) -> Counts:
    """The blocks of a whole draw, ready to be counted."""
    with torch.inference_mode(False):
        draw = pattern._draw()
        row = torch.arange(draw.blocks, device="cpu")
        drawn = draw.rows(row, pattern._one())
        columns = torch.stack(drawn, 1) if drawn else row.new_zeros(draw.blocks, 0)
        return Counts(columns, draw.blocks)
