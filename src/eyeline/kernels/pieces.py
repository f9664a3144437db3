"""Parts of a plan cut into pieces that fit the working memory, as views of the tensors.

A piece is N blocks of R queries and C keys. It knows how to read its queries and keys from a
tensor (heads, length, width), and how to add what was computed for them back.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from eyeline.kernels.merge import Results, merge_into
from eyeline.planning import Block, Gathered, Plan, Slab
from eyeline.tokens.ordering import Ordering

# Tensors in another order of their slots, and back: what reordered parts of a plan need.


def pick(x: Tensor, order: Ordering | None, *, empty: float = 0.0) -> Tensor:
    """(H, L, …) to (H, N, …): what stands at each place of the order; ``empty`` where nobody is.

    Nobody's places hold a number since they may be read under a mask, where NaN would do harm.
    """
    if order is None:
        return x
    picked = _taken(x, order.slots[0].clamp(min=0))
    if not order.whole:
        picked[:, order.pads.to(x.device)] = empty
    return picked


def place(x: Tensor, order: Ordering | None, *, empty: float = 0.0) -> Tensor:
    """(H, N, …) to (H, L, …), the inverse of ``pick``; ``empty`` in slots that have no place."""
    if order is None:
        return x
    placed = _taken(x, order.places[0].clamp(min=0))
    if not order.complete:
        placed[:, order.absent.to(x.device)] = empty
    return placed


def _taken(x: Tensor, index: Tensor) -> Tensor:
    """x[:, index]. Head by head, whole rows are copied, which is three times as fast."""
    index = index.to(x.device)
    taken = x.new_empty(x.shape[0], len(index), *x.shape[2:])
    for head, own in zip(x, taken, strict=True):
        torch.index_select(head, 0, index, out=own)
    return taken


def add(x: Tensor, order: Ordering | None, new: Tensor) -> None:
    """Add what stands at the places, (H, N, …), to their slots in x, (H, L, …)."""
    if order is not None and _is_selection(order):
        x.index_add_(1, order.slots[0].to(x.device), new.to(x.dtype))
    else:
        x.add_(place(new, order))


def take_in(order: Ordering | None, known: Results, new: Results, *, first: bool) -> None:
    """Merge results at the places of an order into known ones, which are changed.

    first: whether nothing is known yet.
    """
    (out, lse), (new_out, new_lse) = known, new
    if order is not None and _is_selection(order) and not first:
        rows = order.slots[0].to(out.device)
        merged = out[:, rows], lse[:, rows]
        merge_into(merged, new)
        out[:, rows], lse[:, rows] = merged
    else:
        placed = place(new_out, order), place(new_lse, order, empty=-torch.inf)
        if first:
            out.copy_(placed[0])
            lse.copy_(placed[1])
        else:
            merge_into(known, placed)


def _is_selection(order: Ordering) -> bool:
    """Whether the order only leaves slots out, so that touching all of them would be a waste."""
    return order.whole and not order.complete


# A mask is evaluated on int64 positions, then kept as bools and as floats.
_MASK_BYTES = 32
# A piece of a slab is cut along its keys rather than made of fewer queries than this.
_FEWEST_ROWS = 64


class Piece(ABC):
    """N blocks of queries and keys; ``mask`` is bool (R, C) or None, shared by the N blocks."""

    mask: Tensor | None

    @abstractmethod
    def queries(self, x: Tensor) -> Tensor:
        """(H, L, …) to the blocks' queries, (N, H, R, …)."""

    @abstractmethod
    def keys(self, x: Tensor) -> Tensor:
        """(Hk, S, E) to the blocks' keys, (N, Hk, C, E)."""

    @abstractmethod
    def put_queries(self, x: Tensor, blocks: Tensor) -> None:
        """Write (N, H, R, …) into the queries of x."""

    @abstractmethod
    def add_queries(self, x: Tensor, blocks: Tensor, *, share: Tensor | None = None) -> None:
        """Multiply the queries of x by ``share``, (N, H, R, 1), and add (N, H, R, E)."""

    @abstractmethod
    def add_keys(self, x: Tensor, blocks: Tensor) -> None:
        """Add (N, Hk, C, E) to the keys of x; blocks may share keys."""

    @abstractmethod
    def span(self) -> tuple[int, int]:
        """The least range of queries that holds all of the piece's, if it holds no others."""


def dense_rows(x: Tensor) -> Tensor:
    """x with a contiguous last dimension, as pieces read it; copied only where it has none."""
    return x if x.stride(-1) == 1 else x.contiguous()


class Footprint(NamedTuple):
    """Working memory of a piece, in bytes: for each query, for each key, and for each pair.

    square: for each pair of two queries of a block, as where something is kept for each query and
    each diagonal.
    """

    query: int
    key: int
    pair: int
    square: int = 0

    def rows(self, columns: int, budget: int) -> int:
        """How many queries may meet so many keys: r² · square + r · (query + columns · pair)."""
        each = max(self.query + columns * self.pair, 1)
        root = math.isqrt(each * each + 4 * self.square * budget)
        return max(2 * budget // (each + root), 1)


def pieces(plan: Plan, part: Block, footprint: Footprint, budget: int) -> Iterator[Piece]:
    """Cut a part into pieces of about ``budget`` bytes, but at least one block or row each."""
    if isinstance(part, Slab):
        yield from _slab_pieces(plan, part, footprint, budget)
        return
    block = part.rows * footprint.query + part.columns * footprint.key
    block += part.rows * (part.columns * footprint.pair + part.rows * footprint.square)
    count = max(budget // max(block, 1), 1)
    if isinstance(part, Gathered):
        for q0, k0 in zip(part.q0.split(count), part.k0.split(count), strict=True):
            yield Listed(q0, k0, part.rows, part.columns)
        return
    for i in range(0, part.count, count):
        ahead, some = i * part.step, min(count, part.count - i)
        shape = (part.rows, part.columns, part.step, some)
        yield Strided(part.q0 + ahead, part.k0 + ahead, *shape, part.mask)


def _slab_pieces(plan: Plan, part: Slab, footprint: Footprint, budget: int) -> Iterator[Piece]:
    if part.masked:
        footprint = footprint._replace(pair=max(footprint.pair, _MASK_BYTES))
    # What costs nothing for keys is not split along them: that saves merges.
    key = max(footprint.key, _FEWEST_ROWS * footprint.pair)
    columns = min(max(budget // key, _FEWEST_ROWS), part.columns) if key else part.columns
    rows = footprint.rows(columns, budget)
    for q0, height in _cuts(part.q0, part.rows, rows):
        for k0, width in _cuts(part.k0, part.columns, columns):
            mask = plan.mask(q0, height, k0, width) if part.masked else None
            yield Strided(q0, k0, height, width, 0, 1, mask)


def _cuts(start: int, length: int, size: int) -> Iterator[tuple[int, int]]:
    for offset in range(0, length, size):
        yield start + offset, min(size, length - offset)


@final
@dataclass(frozen=True, eq=False)
class Strided(Piece):
    """Blocks at equal steps: overlapping views, nothing is copied."""

    q0: int
    k0: int
    rows: int
    columns: int
    step: int
    count: int
    mask: Tensor | None

    def queries(self, x: Tensor) -> Tensor:
        return self._blocks(x, self.q0, self.rows)

    def keys(self, x: Tensor) -> Tensor:
        return self._blocks(x, self.k0, self.columns)

    def put_queries(self, x: Tensor, blocks: Tensor) -> None:
        self.queries(x).copy_(blocks)

    def add_queries(self, x: Tensor, blocks: Tensor, *, share: Tensor | None = None) -> None:
        view = self.queries(x)
        if share is not None:
            view.mul_(share)
        view.add_(blocks)

    def add_keys(self, x: Tensor, blocks: Tensor) -> None:
        # Neighbouring blocks share keys. Slices no wider than a step do not overlap.
        width = self.step if self.count > 1 else self.columns
        for first in range(0, self.columns, width):
            end = min(first + width, self.columns)
            self._blocks(x, self.k0 + first, end - first).add_(blocks[:, :, first:end])

    def span(self) -> tuple[int, int]:
        return self.q0, self.q0 + (self.count - 1) * self.step + self.rows

    def _blocks(self, x: Tensor, start: int, length: int) -> Tensor:
        heads, along = x.stride(0), x.stride(1)
        size = (self.count, x.shape[0], length, *x.shape[2:])
        stride = (self.step * along, heads, along, *x.stride()[2:])
        return x.as_strided(size, stride, x.storage_offset() + start * along)


@final
@dataclass(frozen=True, eq=False)
class Listed(Piece):
    """Blocks at arbitrary places, without masks: their queries and keys are copied together."""

    q0: Tensor
    k0: Tensor
    rows: int
    columns: int
    mask: Tensor | None = None

    def queries(self, x: Tensor) -> Tensor:
        return x[:, self._index(self.q0, self.rows, x)].transpose(0, 1)

    def keys(self, x: Tensor) -> Tensor:
        return x[:, self._index(self.k0, self.columns, x)].transpose(0, 1)

    def put_queries(self, x: Tensor, blocks: Tensor) -> None:
        x[:, self._index(self.q0, self.rows, x)] = blocks.transpose(0, 1).to(x.dtype)

    def add_queries(self, x: Tensor, blocks: Tensor, *, share: Tensor | None = None) -> None:
        old = self.queries(x)
        self.put_queries(x, blocks + (old if share is None else old * share))

    def add_keys(self, x: Tensor, blocks: Tensor) -> None:
        index = self._index(self.k0, self.columns, x).flatten()
        x.index_add_(1, index, blocks.transpose(0, 1).flatten(1, 2).to(x.dtype))

    def span(self) -> tuple[int, int]:
        return int(self.q0.min()), int(self.q0.max()) + self.rows

    def _index(self, start: Tensor, length: int, x: Tensor) -> Tensor:
        return (start[:, None] + torch.arange(length)).to(x.device)
