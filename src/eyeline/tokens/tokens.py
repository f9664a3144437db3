"""What is known of each slot of a sequence: position, document, segment, or that it is padding.

The *slot* is the index in a tensor or cache. The *position* is what patterns compare. Slots of
different *documents* are apart, whatever the pattern; slots of different *segments* only where a
pattern asks. The position that an encoding uses may differ from the one that patterns compare.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument
from eyeline.memory import remembered, remembered_property, traced

NOBODY = -1
LARGEST = 1 << 60
"""Positions, documents, segments and widths lie below this."""


class Points(NamedTuple):
    """Positions, documents and segments of some tokens, shaped to broadcast against others.

    Where tokens name no documents or no segments, these are 0.
    """

    position: Tensor
    document: Tensor
    segment: Tensor

    @staticmethod
    def of(
        position: Tensor, document: Tensor | None = None, segment: Tensor | None = None
    ) -> Points:
        """With 0 for what is not named."""
        if document is None or segment is None:
            one = torch.zeros_like(position)
            document = document if document is not None else one
            segment = segment if segment is not None else one
        return Points(position, document, segment)

    def to(self, device: torch.device) -> Points:
        """The same on a device."""
        return Points(*(x.to(device) for x in self))

    def unsqueeze(self, axis: int) -> Points:
        """The same with one more axis, of size 1."""
        return Points(*(x.unsqueeze(axis) for x in self))


@dataclass(frozen=True, eq=False)
class Tokens:
    """The slots of a sequence: ``positions[i]`` is where slot i stands, or -1 for padding.

    All are int64, (L,) shared by every batch row, or (B, L), of one shape.

    positions: what patterns compare. Two slots may stand at one position (a tree of drafts).
    documents: slots of different documents are apart, whatever the pattern; None for one document.
    segments: what ``SameSegment()`` compares: a cluster, a node of a tree, a half; None for one.
    encoding_positions: what encodings that are added and rotary encodings use; None for positions.

    Tokens are never changed after they are made, so plans are remembered by the object itself:
    make them once per step and pass the same object to every layer.

    Raises InvalidArgument for another dtype or shape, and for numbers below -1 (on the CPU).
    """

    positions: Tensor
    documents: Tensor | None = None
    segments: Tensor | None = None
    encoding_positions: Tensor | None = None

    def __post_init__(self) -> None:
        _check("positions", self.positions)
        for name in ("documents", "segments", "encoding_positions"):
            column = getattr(self, name)
            if column is None:
                continue
            _check(name, column)
            if column.shape != self.positions.shape:
                raise InvalidArgument(
                    f"{name} {tuple(column.shape)} must have the shape of "
                    f"positions {tuple(self.positions.shape)}"
                )

    @staticmethod
    def arange(start: int, stop: int) -> Tokens:
        """Slots that stand at start, start + 1, …, stop - 1."""
        return Tokens(torch.arange(start, stop, device="cpu"))

    @staticmethod
    def listed(
        positions: Sequence[int],
        documents: Sequence[int] | None = None,
        segments: Sequence[int] | None = None,
    ) -> Tokens:
        """Slots written out one by one; position -1 is padding."""
        columns = (
            None if column is None else torch.tensor(column, dtype=torch.int64)
            for column in (documents, segments)
        )
        return Tokens(torch.tensor(positions, dtype=torch.int64), *columns)

    @staticmethod
    def padded(
        lengths: Sequence[int] | Tensor, side: str = "left", *, length: int | None = None
    ) -> Tokens:
        """A batch of sequences of the given lengths, filled up to ``length`` with padding.

        Row b has positions 0 … lengths[b] - 1, after its padding (side="left", as for generation)
        or before it (side="right"). Returns positions of shape (B, length).
        """
        sizes = _numbers("lengths", lengths)
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
    def packed(
        lengths: Sequence[int] | Sequence[Sequence[int]] | Tensor, *, length: int | None = None
    ) -> Tokens:
        """Documents of the given lengths laid end to end in one sequence, then padding.

        Each document begins at position 0. Several lists of lengths are a batch of packings, with
        positions (B, length); rows that are shorter than the longest end in padding.
        """
        if not isinstance(lengths, Tensor) and lengths and isinstance(lengths[0], Sequence):
            every = [_numbers("lengths", row) for row in lengths]  # type: ignore[arg-type]
            longest = max(int(sizes.sum()) for sizes in every)
            longest = length if length is not None else longest
            return Tokens.numbered(torch.stack([_packed(sizes, longest) for sizes in every]))
        sizes = _numbers("lengths", lengths)  # type: ignore[arg-type]
        total = length if length is not None else int(sizes.sum())
        return Tokens.numbered(_packed(sizes, total))

    @staticmethod
    def cu_seqlens(offsets: Sequence[int] | Tensor, *, length: int | None = None) -> Tokens:
        """``packed`` from cumulative lengths: document d takes slots offsets[d] … offsets[d+1] - 1.

        Raises InvalidArgument unless they begin at 0 and never go down.
        """
        ends = _numbers("cu_seqlens", offsets)
        if not len(ends) or int(ends[0]) or bool((ends.diff() < 0).any()):
            raise InvalidArgument(
                f"cu_seqlens {ends.tolist()[:8]}: they begin at 0 and never go down, "
                "as in [0, 3, 7] for documents of 3 and 4 tokens"
            )
        return Tokens.packed(ends.diff(), length=length)

    @staticmethod
    def numbered(documents: Sequence[int] | Tensor) -> Tokens:
        """From the number of each slot's document, (L,) or (B, L); -1 is padding.

        Positions count the tokens of each document, from 0 in the order of the slots.
        """
        documents = torch.as_tensor(documents, dtype=torch.int64)
        if documents.dim() not in (1, 2):
            raise InvalidArgument(f"documents {tuple(documents.shape)}: (L,) or (B, L)")
        grouped, slots = documents.sort(dim=-1, stable=True)
        place = torch.arange(documents.shape[-1], device=documents.device).expand_as(documents)
        first = torch.ones_like(grouped, dtype=torch.bool)
        first[..., 1:] = grouped[..., 1:] != grouped[..., :-1]
        counted = place - torch.where(first, place, 0).cummax(-1).values
        positions = torch.empty_like(documents).scatter_(-1, slots, counted)
        return Tokens(torch.where(documents == NOBODY, NOBODY, positions), documents)

    @staticmethod
    def masked(mask: Tensor) -> Tokens:
        """From a bool mask, (L,) or (B, L), True where a slot holds a real token.

        Real tokens stand at 0, 1, 2, … in each row, wherever the padding is.
        Raises InvalidArgument for another dtype: True must not be mistaken for padding.
        """
        if mask.dtype != torch.bool or mask.dim() not in (1, 2):
            raise InvalidArgument(
                f"the mask is {mask.dtype} {tuple(mask.shape)}: bool (L,) or (B, L), True where a "
                "token is real; of an attention_mask of 0 and 1 give mask.bool()"
            )
        return Tokens(torch.where(mask, mask.cumsum(-1) - 1, NOBODY))

    @property
    def length(self) -> int:
        """The number of slots, L."""
        return self.positions.shape[-1]

    @property
    def batch(self) -> int | None:
        """The number of batch rows, or None when all rows share these slots."""
        return self.positions.shape[0] if self.positions.dim() == 2 else None

    @property
    def bare(self) -> Tokens:
        """Positions alone, for a rule that compares no more: the same object at each call."""
        named = self.documents, self.segments, self.encoding_positions
        return self if all(x is None for x in named) else self._bare

    @remembered_property
    def _bare(self) -> Tokens:
        return Tokens(self.positions)

    @property
    def encoded(self) -> Tensor:
        """The positions that added and rotary encodings use."""
        return self.encoding_positions if self.encoding_positions is not None else self.positions

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Tokens:
        """Tokens of every column changed alike: positions, and what else is named."""
        changed = (None if column is None else change(column) for column in self._columns)
        return Tokens(*changed)  # type: ignore[arg-type]

    def equals(self, other: Tokens) -> bool:
        """Whether all columns hold equal numbers, and the same ones are named."""
        columns = zip(self._columns, other._columns, strict=True)
        return all(
            a is b or (a is not None and b is not None and torch.equal(a, b)) for a, b in columns
        )

    @property
    def _columns(self) -> tuple[Tensor | None, ...]:
        return self.positions, self.documents, self.segments, self.encoding_positions

    def row(self, index: int) -> Tokens:
        """The slots of one batch row. Equal rows are the same object, so they share a plan."""
        return self if self.batch is None else self._rows[index]

    @remembered_property
    def _rows(self) -> tuple[Tokens, ...]:
        if not self.length:  # torch.unique has no answer for empty rows
            return (self.mapped(lambda column: column[0]),) * len(self.positions)
        table = torch.stack([column for column in self._columns if column is not None], 1)
        distinct, which = table.unique(dim=0, return_inverse=True)
        rows = []
        for values in distinct:
            column = iter(values.unbind(0))
            rows.append(self.mapped(lambda _, column=column: next(column)))  # type: ignore[misc]
        return tuple(rows[index] for index in which.tolist())

    @remembered_property
    def host(self) -> Tokens:
        """The same slots in the memory of the CPU, where plans are made."""
        return self if self.positions.device.type == "cpu" else self.mapped(Tensor.cpu)

    def last(self, count: int) -> Tokens:
        """The last ``count`` slots."""
        if count == self.length:
            return self
        if not 0 <= count < self.length:
            raise InvalidArgument(f"there are {self.length} slots, not {count}")
        return self.mapped(lambda column: column[..., self.length - count :])

    def at(self, slots: Tensor | slice) -> Points:
        """What is known of some slots of one sequence: Points of the shape of ``slots``."""
        return self._points(lambda column: column[slots])

    def points(self, *, axis: int, device: torch.device | str | None = None) -> Points:
        """Points of shape (…, L, 1) for axis=-2 (queries) or (…, 1, L) for axis=-1 (keys)."""
        other = -1 if axis == -2 else -2
        return self._points(lambda column: column.to(device).unsqueeze(other))

    def _points(self, read: Callable[[Tensor], Tensor]) -> Points:
        columns = self.positions, self.documents, self.segments
        read_columns = (None if column is None else read(column) for column in columns)
        return Points.of(*read_columns)  # type: ignore[arg-type]


def default_tokens(queries: int, keys: int) -> tuple[Tokens, Tokens]:
    """Keys at 0 … S-1; queries are the last L of them (at 0 … L-1 when L > S)."""
    return _default_tokens(queries, keys)


@remembered(256)
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
    if tensor.device.type != "cpu" or not tensor.numel() or traced():
        return  # a GPU is not waited for; a graph has no numbers before it runs
    least, most = (int(bound) for bound in tensor.aminmax())
    if least < NOBODY or most >= LARGEST:
        raise InvalidArgument(
            f"{name} hold {least if least < NOBODY else most}: "
            "they go from -1 (padding) to 2^60 - 1"
        )


def _packed(sizes: Tensor, length: int) -> Tensor:
    """The number of each slot's document, (length,), -1 after the last."""
    total = int(sizes.sum())
    if length < total:
        raise InvalidArgument(f"length={length} is shorter than the documents, {total}")
    documents = torch.repeat_interleave(torch.arange(len(sizes), device=sizes.device), sizes)
    return torch.nn.functional.pad(documents, (0, length - total), value=NOBODY)


def _numbers(name: str, numbers: Sequence[int] | Tensor) -> Tensor:
    sizes = torch.as_tensor(numbers, dtype=torch.int64)
    if sizes.dim() != 1:
        raise InvalidArgument(f"{name} must be one list of numbers, got {tuple(sizes.shape)}")
    if len(sizes) and int(sizes.min()) < 0:
        raise InvalidArgument(f"{name} must be at least 0, got {int(sizes.min())}")
    return sizes
