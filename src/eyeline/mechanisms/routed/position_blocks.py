"""Blocks of neighbours by position, each document's own: which slot stands at which place."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import final

import torch
from torch import Tensor
from torch.nn import functional

from eyeline.caches.marked import PoolBy
from eyeline.checks import wide_dtype
from eyeline.errors import InvalidArgument
from eyeline.kernels.route import Route
from eyeline.tokens import NOBODY, Tokens


@final
@dataclass(frozen=True, eq=False)
class PositionBlocks:
    """N blocks of ``size`` places: who stands at p is at place p % size of block ⌊p / size⌋.

    There are those blocks that somebody is in, in the order of documents, then of positions. R is
    1 for all batch rows, or one each; rows with fewer blocks end in empty ones.
    slots: int64 (R, N, size), who is at a place, -1 for nobody. numbers: int64 (R, N), ⌊p / size⌋;
    documents: int64 (R, N); both -1 for an empty block. places: int64 (R, L), where a slot is,
    n · size + p % size, -1 for nobody. straight: whether every slot s is at place s.
    """

    slots: Tensor
    numbers: Tensor
    documents: Tensor
    places: Tensor
    straight: bool

    @property
    def real(self) -> Tensor:
        """Whether somebody is at a place, bool (R, N, size)."""
        return self.slots != NOBODY

    @property
    def count(self) -> int:
        """N."""
        return self.numbers.shape[1]

    @property
    def size(self) -> int:
        """How many places a block has."""
        return self.slots.shape[2]

    def take(self, x: Tensor) -> Tensor:
        """(B, H, L, E) to (B, H, N, size, E): true zeros, with no gradient, where nobody is."""
        missing = self.count * self.size - x.shape[2]
        if self.straight:
            padded = functional.pad(x, (0, 0, 0, missing)) if missing else x
            return padded.reshape(*x.shape[:2], self.count, self.size, x.shape[3])
        moved = _rows(x, self.slots.flatten(1).clamp(min=0))
        moved = moved.view(*x.shape[:2], self.count, self.size, x.shape[3])
        return moved.masked_fill(~self.real[:, None, :, :, None], 0.0)

    def back(self, x: Tensor) -> Tensor:
        """(B, H, N, size, E) to (B, H, L, E): 0 for nobody."""
        flat, length = x.flatten(2, 3), self.places.shape[1]
        if self.straight:
            return flat if length == flat.shape[2] else flat[:, :, :length]
        if not self.count:
            return x.flatten(2, 3).sum(2, keepdim=True).expand(-1, -1, length, -1)
        moved = _rows(flat, self.places.clamp(min=0))
        return moved.masked_fill((self.places == NOBODY)[:, None, :, None], 0.0)

    @property
    def number_of_slot(self) -> Tensor:
        """The block that each slot is in, from 0 to N - 1: int64 (R, L), -1 for padding."""
        return self.places.div(self.size, rounding_mode="floor")

    def pool(self, x: Tensor, by: PoolBy = "mean") -> Tensor:
        """out[n] = mean, largest or sum of x over the real tokens of block n; 0 for an empty block.

        (B, H, L, E) to (B, H, N, E), in the dtype of x; sums are taken in float32 at least.
        """
        taken, real = self.take(x), self.real.to(x.device)[:, None, :, :, None]
        if by == "max":
            most = taken.masked_fill(~real, -torch.inf).amax(3)
            return most.masked_fill(~real.any(3), 0.0)
        total = taken.sum(3, dtype=wide_dtype(x))
        if by == "mean":
            total = total / real.sum(3).clamp(min=1)
        return total.to(x.dtype)

    def to(self, device: torch.device) -> PositionBlocks:
        """The same on another device."""
        return PositionBlocks(
            self.slots.to(device), self.numbers.to(device), self.documents.to(device),
            self.places.to(device), self.straight,
        )  # fmt: skip


@lru_cache(maxsize=16)
def position_blocks(tokens: Tokens, size: int) -> PositionBlocks:
    """In the memory of the CPU. Raises InvalidArgument for two tokens of a document at one
    position."""
    host = tokens.host
    with torch.inference_mode(False):
        positions = torch.atleast_2d(host.positions)
        known = host.documents
        documents = torch.zeros_like(positions) if known is None else torch.atleast_2d(known)
        rows = [_row(*both, size) for both in zip(positions, documents, strict=True)]
        most = max([len(numbers) for numbers, _, _ in rows], default=0)
        numbers, named = (
            torch.stack([functional.pad(row[i], (0, most - len(row[i])), value=NOBODY)
                         for row in rows])
            for i in (0, 1)
        )  # fmt: skip
        places = torch.stack([row[2] for row in rows])
        slots = _slots(places, most * size)
        straight = bool((places == torch.arange(places.shape[1])).all())
        return PositionBlocks(slots.unflatten(1, (most, size)), numbers, named, places, straight)


def _row(position: Tensor, document: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers and documents of the blocks of a row, (N,), and the place of each slot, (L,)."""
    there = position != NOBODY
    numbers, number = (position[there] // size).unique(return_inverse=True)
    documents, named = document[there].unique(return_inverse=True)
    found, index = (named * len(numbers) + number).unique(return_inverse=True)
    places = torch.full_like(position, NOBODY)
    places[there] = index * size + position[there] % size
    width = max(len(numbers), 1)
    return numbers[found % width], documents[found // width], places


def _slots(places: Tensor, length: int) -> Tensor:
    """Who is at each of so many places, (R, length)."""
    slots = torch.full((len(places), length), NOBODY)
    row, slot = (places != NOBODY).nonzero().unbind(1)
    slots[row, places[row, slot]] = slot
    if int((slots != NOBODY).sum()) != len(row):
        raise InvalidArgument(
            "two tokens of a document stand at one position: blocks are made by position"
        )
    return slots


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """The rows of x (B, H, n, E) at index (R, m): (B, H, m, E)."""
    if len(index) == 1:
        return x.index_select(2, index[0])
    return x.gather(2, index[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))


# A route from a choice of blocks.


def route_of_blocks(
    choice: Tensor, key_blocks: PositionBlocks, *, query_blocks: PositionBlocks | None = None
) -> Route:
    """The route on which queries attend to whole blocks of keys: m_ij = 1 where the block of j is
    among those chosen for i, else 0.

    choice: int64 (B, H, L, k), for each query and query head the numbers of blocks of
    ``key_blocks``, in any order, -1 for none; with ``query_blocks`` (B, H, N, k), for each of its N
    blocks of queries. A number that is named twice counts once; a block's own may be among them.

    What may attend to what within the blocks, say only earlier keys, the pattern says that
    ``routed_attention`` is given with the route. Padding is on no route. Work and memory are those
    of the pairs, L · k · size, and of the numbers of their keys: for queries alone as many, for
    blocks of queries a block's size less.

    Raises InvalidArgument for another dtype or shape, and for numbers of blocks that are not there.
    """
    count, size = key_blocks.count, key_blocks.size
    if choice.dtype != torch.int64 or choice.dim() != 4:
        raise InvalidArgument(
            f"choice is {choice.dtype} {tuple(choice.shape)}: int64 (batch, heads, queries, k)"
        )
    if choice.numel() and not -1 <= int(choice.min()) <= int(choice.max()) < count:
        least, most = int(choice.min()), int(choice.max())
        raise InvalidArgument(f"choice from {least} to {most}: there are blocks 0 to {count - 1}")
    if query_blocks is not None and query_blocks.count != choice.shape[2]:
        raise InvalidArgument(
            f"choice {tuple(choice.shape)} for {query_blocks.count} blocks of queries"
        )
    batch, heads, rows, _ = choice.shape
    chosen = functional.pad(choice, (0, 1), value=NOBODY).sort(-1, descending=True).values
    again = functional.pad(chosen[..., 1:] == chosen[..., :-1], (1, 0))
    chosen = chosen.masked_fill(again | (chosen == NOBODY), count)[..., : max(choice.shape[3], 1)]
    # One more block, which is all padding, for those that are not chosen.
    slots = functional.pad(key_blocks.slots.to(choice.device), (0, 0, 0, 1), value=NOBODY)
    row = torch.arange(batch, device=choice.device)[:, None, None, None]
    keys = slots.expand(batch, -1, -1)[row, chosen].reshape(batch, heads, 1, -1)
    if query_blocks is None:
        queries, of_block = torch.arange(rows, device=choice.device), 1
    else:
        queries, of_block = query_blocks.slots.to(choice.device).flatten(1), query_blocks.size
        queries = queries[:, None, None]
    columns = chosen.shape[3] * size
    return Route(queries.expand(batch, heads, 1, -1), keys, of_block, columns, columns)
