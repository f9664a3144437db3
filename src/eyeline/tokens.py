"""What is known of each slot of a sequence: its position, its document, or that nobody is there.

Three notions stay apart. The *slot* is the index in a tensor or cache. The *position* is what
patterns compare. The position that an encoding uses may differ from both (packed documents and
re-counted caches), and belongs to the encoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument

NOBODY = -1
LARGEST = 1 << 60
"""Positions, documents and widths lie below this."""


class Points(NamedTuple):
    """Positions and documents of some tokens, shaped to broadcast against other tokens."""

    position: Tensor
    document: Tensor


@dataclass(frozen=True, eq=False)
class Tokens:
    """The slots of a sequence: ``positions[i]`` is where slot i stands, or -1 for nobody.

    positions: int64, (L,) shared by every batch row, or (B, L).
    documents: int64, same shape, or None when there is one document.

    Tokens are never changed after they are made, so plans are remembered by the object itself:
    make them once per step and pass the same object to every layer.

    Raises InvalidArgument for another dtype or shape, and for positions below -1 (on the CPU).
    """

    positions: Tensor
    documents: Tensor | None = None

    def __post_init__(self) -> None:
        _check("positions", self.positions)
        if self.documents is None:
            return
        _check("documents", self.documents)
        if self.documents.shape != self.positions.shape:
            raise InvalidArgument(
                f"documents {tuple(self.documents.shape)} must have the shape of "
                f"positions {tuple(self.positions.shape)}"
            )

    @staticmethod
    def arange(start: int, stop: int) -> Tokens:
        """Slots that stand at start, start + 1, …, stop - 1."""
        return Tokens(torch.arange(start, stop, device="cpu"))

    @staticmethod
    def listed(positions: Sequence[int], documents: Sequence[int] | None = None) -> Tokens:
        """Slots written out one by one; -1 is nobody."""
        listed = None if documents is None else torch.tensor(documents, dtype=torch.int64)
        return Tokens(torch.tensor(positions, dtype=torch.int64), listed)

    @staticmethod
    def padded(
        lengths: Sequence[int] | Tensor, side: str = "left", *, length: int | None = None
    ) -> Tokens:
        """A batch of sequences of the given lengths, filled up to ``length`` with nobody.

        Row b has positions 0 … lengths[b] - 1, after its pads (side="left", as for generation)
        or before them (side="right"). Returns positions of shape (B, length).
        """
        sizes = _lengths(lengths)
        longest = int(sizes.max()) if len(sizes) else 0
        length = length if length is not None else longest
        if side not in ("left", "right"):
            raise InvalidArgument(f'side={side!r}: it is "left" or "right"')
        if length < longest:
            raise InvalidArgument(f"length={length} is shorter than the longest row, {longest}")
        shift = (length - sizes)[:, None] if side == "left" else 0
        positions = torch.arange(length)[None, :] - shift
        inside = (positions >= 0) & (positions < sizes[:, None])
        return Tokens(torch.where(inside, positions, NOBODY))

    @staticmethod
    def packed(lengths: Sequence[int] | Tensor, *, length: int | None = None) -> Tokens:
        """Documents of the given lengths laid end to end in one sequence, then nobody.

        Positions run on from one document to the next; ``SameDocument()`` keeps them apart.
        """
        sizes = _lengths(lengths)
        total = int(sizes.sum())
        length = length if length is not None else total
        if length < total:
            raise InvalidArgument(f"length={length} is shorter than the documents, {total}")
        documents = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
        documents = torch.nn.functional.pad(documents, (0, length - total), value=NOBODY)
        positions = torch.where(documents >= 0, torch.arange(length), NOBODY)
        return Tokens(positions, documents)

    @property
    def length(self) -> int:
        """The number of slots, L."""
        return self.positions.shape[-1]

    @property
    def batch(self) -> int | None:
        """The number of batch rows, or None when all rows share these slots."""
        return self.positions.shape[0] if self.positions.dim() == 2 else None

    def row(self, index: int) -> Tokens:
        """The slots of one batch row. Equal rows are the same object, so they share a plan."""
        return self if self.batch is None else self._rows[index]

    @cached_property
    def _rows(self) -> tuple[Tokens, ...]:
        both = [x for x in (self.positions, self.documents) if x is not None]
        if not self.length:  # torch.unique has no answer for empty rows
            return (Tokens(*(x[0] for x in both)),) * len(self.positions)
        distinct, which = torch.stack(both, 1).unique(dim=0, return_inverse=True)
        rows = [Tokens(*row.unbind(0)) for row in distinct]
        return tuple(rows[index] for index in which.tolist())

    @cached_property
    def host(self) -> Tokens:
        """The same slots in the memory of the CPU, where plans are made."""
        if self.positions.device.type == "cpu":
            return self
        return Tokens(*(None if x is None else x.cpu() for x in (self.positions, self.documents)))  # type: ignore[arg-type]

    def last(self, count: int) -> Tokens:
        """The last ``count`` slots."""
        if count == self.length:
            return self
        if not 0 <= count < self.length:
            raise InvalidArgument(f"there are {self.length} slots, not {count}")
        start = self.length - count
        documents = None if self.documents is None else self.documents[..., start:]
        return Tokens(self.positions[..., start:], documents)

    def at(self, slots: Tensor | slice) -> Points:
        """Who stands in some slots of one sequence: Points of the shape of ``slots``."""
        position = self.positions[slots]
        if self.documents is None:
            return Points(position, torch.zeros_like(position))
        return Points(position, self.documents[slots])

    def points(self, *, axis: int, device: torch.device | str | None = None) -> Points:
        """Points of shape (…, L, 1) for axis=-2 (queries) or (…, 1, L) for axis=-1 (keys)."""
        other = -1 if axis == -2 else -2
        position = self.positions.to(device).unsqueeze(other)
        if self.documents is None:
            return Points(position, torch.zeros_like(position))
        return Points(position, self.documents.to(device).unsqueeze(other))


def default_tokens(queries: int, keys: int) -> tuple[Tokens, Tokens]:
    """Keys at 0 … S-1; queries are the last L of them (at 0 … L-1 when L > S)."""
    return _default_tokens(queries, keys)


@lru_cache(maxsize=256)
def _default_tokens(queries: int, keys: int) -> tuple[Tokens, Tokens]:
    key_tokens = Tokens.arange(0, keys)
    if queries == keys:
        return key_tokens, key_tokens
    start = max(keys - queries, 0)
    return Tokens.arange(start, start + queries), key_tokens


def _check(name: str, tensor: Tensor) -> None:
    if tensor.dtype != torch.int64 or tensor.dim() not in (1, 2):
        raise InvalidArgument(
            f"{name} must be int64 of shape (L,) or (B, L), "
            f"got {tensor.dtype} {tuple(tensor.shape)}"
        )
    if tensor.device.type != "cpu" or not tensor.numel() or torch.compiler.is_compiling():
        return  # a GPU is not waited for; a graph has no numbers before it runs
    least, most = (int(bound) for bound in tensor.aminmax())
    if least < NOBODY or most >= LARGEST:
        raise InvalidArgument(
            f"{name} hold {least if least < NOBODY else most}: they go from -1 (nobody) to 2^60 - 1"
        )


def _lengths(lengths: Sequence[int] | Tensor) -> Tensor:
    sizes = torch.as_tensor(lengths, dtype=torch.int64)
    if sizes.dim() != 1:
        raise InvalidArgument(f"lengths must be one list of numbers, got {tuple(sizes.shape)}")
    if len(sizes) and int(sizes.min()) < 0:
        raise InvalidArgument(f"lengths must be at least 0, got {int(sizes.min())}")
    return sizes
