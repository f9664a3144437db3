"""Tokens in groups: by document, and by blocks of positions. Each is an ``Ordering`` with names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor
from torch.nn import functional

from eyeline.memory import traced
from eyeline.tokens.ordering import CPU, Ordering, remembered_by_tokens, sorted_by
from eyeline.tokens.tokens import NOBODY, Tokens

PoolBy = Literal["mean", "max", "sum"]

# Documents: the tokens of each in the order of positions.


class Stretch(NamedTuple):
    """A document's number, and the places where its tokens begin and end."""

    document: int
    start: int
    stop: int


@final
@dataclass(frozen=True, eq=False)
class ByDocument:
    """The tokens of R rows by document and position.

    number: int64 (R, n), the number of the document at each place, from 0 in the order of the
    tokens' own numbers; D at padding. sizes: int64 (R, D), how many tokens each document has.
    names: int64 (R, D), the tokens' own numbers.
    """

    ordering: Ordering
    number: Tensor
    sizes: Tensor
    names: Tensor

    @property
    def count(self) -> int:
        """D: the most documents of a row."""
        return self.sizes.shape[1]

    @property
    def longest(self) -> int:
        """The most tokens that a document has."""
        return int(self.sizes.max()) if self.sizes.numel() else 0

    @property
    def slots(self) -> Tensor:
        """The slots of the first row's tokens, (n,)."""
        return self.ordering.slots[0]

    @cached_property
    def stretches(self) -> tuple[Stretch, ...]:
        """Where the documents of the first row lie."""
        sizes, names = self.sizes[0], self.names[0]
        stops = sizes.cumsum(0)
        each = zip(names.tolist(), (stops - sizes).tolist(), stops.tolist(), strict=True)
        return tuple(Stretch(*one) for one in each)

    def shares(self, total: int) -> list[int]:
        """⌈total · n_d / n⌉ for each of the first row's documents, of n_d tokens; at most n_d."""
        sizes, size = self.sizes[0].tolist(), self.ordering.slots.shape[1]
        return [min(-(-total * own // size), own) for own in sizes]

    def by_slot(self, x: Tensor) -> Tensor:
        """What documents have, (R, D), for each slot, (R, L); of padding the last document's."""
        last = torch.full_like(self.ordering.places, max(self.count - 1, 0))
        if not self.number.shape[1]:
            return x.gather(1, last)
        at_place = self.number.gather(1, self.ordering.places.clamp(min=0))
        number = torch.where(self.ordering.places == NOBODY, last, at_place)
        return x.gather(1, number.clamp(max=max(self.count - 1, 0)))

    def chunked(self, size: int) -> Tensor:
        """Places put into chunks of ``size``, so that each document begins one.

        int64 (R, m): the place that comes there, -1 where none does.
        """
        taken = (self.sizes + size - 1) // size * size
        shift = (taken.cumsum(1) - taken) - (self.sizes.cumsum(1) - self.sizes)
        row, place = (self.number < self.count).nonzero().unbind(1)
        most = int(taken.sum(1).max()) if taken.numel() else 0
        chunks = torch.full((len(self.number), most), NOBODY, device=self.number.device)
        chunks[row, place + shift[row, self.number[row, place]]] = place
        return chunks


@remembered_by_tokens
def by_document(tokens: Tokens, device: torch.device = CPU) -> ByDocument:
    """The tokens by document and position, and what documents there are."""
    ordering, host = sorted_by(tokens, "documents", "positions"), tokens.host
    named = torch.zeros_like(host.positions) if host.documents is None else host.documents
    real = ordering.real
    document = torch.atleast_2d(named).gather(1, ordering.slots.clamp(min=0))
    first = real.clone()
    first[:, 1:] &= document[:, 1:] != document[:, :-1]
    number = first.long().cumsum(1) - 1
    count = int(number.max()) + 1 if bool(real.any()) else 0
    number = number.masked_fill(~real, count)
    sizes, names = (number.new_zeros(len(number), count + 1) for _ in range(2))
    sizes.scatter_add_(1, number, real.long())
    names.scatter_(1, number, document)
    parts = number, sizes[:, :count], names[:, :count]
    return ByDocument(ordering.to(device), *(x.to(device) for x in parts))


# Blocks of positions: place p % size of block ⌊p / size⌋, each document's own.


@final
@dataclass(frozen=True, eq=False)
class PositionBlocks:
    """N blocks of ``size`` places; the token at position p is at place p % size of ⌊p / size⌋.

    There are those blocks that a token is in, by document, then by position; rows with fewer
    blocks end in empty ones. numbers: int64 (R, N), ⌊p / size⌋; documents: int64 (R, N); both -1
    for an empty block. tokens: blocks stand at the last of their positions; empty ones are padding.
    """

    ordering: Ordering
    size: int
    numbers: Tensor
    documents: Tensor
    tokens: Tokens

    @property
    def count(self) -> int:
        """N."""
        return self.numbers.shape[1]

    @property
    def slots(self) -> Tensor:
        """The slot at each place, int64 (R, N, size), -1 at padding."""
        slots: Tensor = self.ordering.slots.unflatten(1, (self.count, self.size))
        return slots

    @property
    def real(self) -> Tensor:
        """Which places hold a slot, bool (R, N, size)."""
        return self.slots != NOBODY

    @property
    def full(self) -> bool:
        """Whether every place holds a slot, and every slot has a place."""
        return self.ordering.whole and self.ordering.complete

    def take(self, x: Tensor) -> Tensor:
        """(B, H, L, E) to (B, H, N, size, E): true zeros, with no gradient, at padding."""
        blocks: Tensor = self.ordering.take(x, 2).unflatten(2, (self.count, self.size))
        return blocks

    def put_back(self, x: Tensor) -> Tensor:
        """(B, H, N, size, E) to (B, H, L, E): 0 for padding."""
        return self.ordering.put_back(x.flatten(2, 3), 2)

    @property
    def number_of_slot(self) -> Tensor:
        """The block that each slot is in, from 0 to N - 1: int64 (R, L), -1 for padding."""
        return self.ordering.places.div(self.size, rounding_mode="floor")

    def pool(self, x: Tensor, by: PoolBy = "mean") -> Tensor:
        """out[n] = mean, largest or sum of x over the real tokens of block n; 0 for an empty block.

        (B, H, L, E) to (B, H, N, E), in the dtype of x; sums are taken in float32 at least.
        """
        taken = self.take(x)
        if self.full and by != "sum":
            return taken.mean(3) if by == "mean" else taken.amax(3)
        real = self.real.to(x.device)[:, None, ..., None]
        if by == "max":
            most = taken.masked_fill(~real, -torch.inf).amax(3)
            return most.masked_fill(~real.any(3), 0.0)
        # Sums of half types overflow where their mean does not.
        total = taken.sum(3, dtype=torch.promote_types(x.dtype, torch.float32))
        if by == "mean":
            total = total / real.sum(3).clamp(min=1)
        return total.to(x.dtype)

    def to(self, device: torch.device) -> PositionBlocks:
        """The same in the memory of a device."""
        moved = self.numbers.to(device), self.documents.to(device)
        return PositionBlocks(self.ordering.to(device), self.size, *moved, self.tokens)


@remembered_by_tokens
def position_blocks(tokens: Tokens, size: int, device: torch.device = CPU) -> PositionBlocks:
    """Raises InvalidArgument for two tokens of a document at one position."""
    host = tokens.host
    positions = torch.atleast_2d(host.positions)
    named = torch.zeros_like(positions) if host.documents is None else host.documents
    rows = [
        _block_places(*both, size) for both in zip(positions, torch.atleast_2d(named), strict=True)
    ]
    most = max([len(numbers) for numbers, _, _ in rows], default=0)
    numbers, documents = (
        torch.stack([functional.pad(row[i], (0, most - len(row[i])), value=NOBODY) for row in rows])
        for i in (0, 1)
    )
    ordering = Ordering.placed(torch.stack([places for _, _, places in rows]), most * size)
    ends = torch.where(numbers == NOBODY, NOBODY, numbers * size + size - 1)
    standing = Tokens(ends, None if host.documents is None else documents)
    if tokens.batch is None:
        standing = standing.mapped(lambda column: column[0])
    return PositionBlocks(ordering, size, numbers, documents, standing).to(device)


def _block_places(position: Tensor, document: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers and documents of the blocks of a row, (N,), and the place of each slot, (L,)."""
    real = position != NOBODY
    numbers, number = (position[real] // size).unique(return_inverse=True)
    documents, named = document[real].unique(return_inverse=True)
    blocks, index = (named * len(numbers) + number).unique(return_inverse=True)
    places = torch.full_like(position, NOBODY)
    places[real] = index * size + position[real] % size
    width = max(len(numbers), 1)
    return numbers[blocks % width], documents[blocks // width], places


def blocks_of_slots(length: int, size: int, device: torch.device = CPU) -> PositionBlocks:
    """``position_blocks`` for tokens at 0 … length - 1, of nothing but sizes: a graph knows it."""
    count = -(-length // size)
    with torch.inference_mode(False):
        places = torch.arange(count * size, device=device)
        slots = torch.where(places < length, places, NOBODY)[None]
        numbers = torch.arange(count, device=device)[None]
        whole = not traced() and length % size == 0
        ordering = Ordering(slots, places[None, :length], True, whole, True)
        ends = Tokens(torch.arange(1, count + 1, device="cpu") * size - 1)
        return PositionBlocks(ordering, size, numbers, torch.zeros_like(numbers), ends)
