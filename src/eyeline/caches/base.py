"""What every cache promises, and the bookkeeping of positions that all of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from eyeline.caches.buffers import Layout
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.patterns import EMPTY, Bounds, Pattern
from eyeline.patterns.base import UNBOUNDED
from eyeline.tokens import NOBODY, Tokens

# Small operations on the tokens of slots. None of them changes the tokens it is given.


def join(first: Tokens, second: Tokens) -> Tokens:
    """The slots of the first, then those of the second; per row if either differs by row."""
    batch = first.batch if first.batch is not None else second.batch
    positions = torch.cat((_rows(first.positions, batch), _rows(second.positions, batch)), -1)
    if first.documents is None and second.documents is None:
        return Tokens(positions)
    documents = [_rows(_documents(tokens), batch) for tokens in (first, second)]
    return Tokens(positions, torch.cat(documents, -1))


def take(tokens: Tokens, slots: Tensor) -> Tokens:
    """The tokens in these slots, (m,) or (B, m)."""
    batch = slots.shape[0] if slots.dim() == 2 else None
    positions = _rows(tokens.positions, batch).gather(-1, slots)
    documents = tokens.documents
    if documents is not None:
        documents = _rows(documents, batch).gather(-1, slots)
    return Tokens(positions, documents)


def only(tokens: Tokens, somebody: Tensor) -> Tokens:
    """The same slots, with nobody where ``somebody`` is False."""
    positions = torch.where(somebody, tokens.positions, NOBODY)
    documents = tokens.documents
    return Tokens(positions, None if documents is None else documents.expand(positions.shape))


def first(tokens: Tokens, count: int) -> Tokens:
    """The first ``count`` slots."""
    if count == tokens.length:
        return tokens
    documents = None if tokens.documents is None else tokens.documents[..., :count]
    return Tokens(tokens.positions[..., :count], documents)


def exchanged(tokens: Tokens, index: Tensor) -> Tokens:
    """Row b is what row index[b] was; slots shared by all rows stay as they are."""
    if tokens.batch is None:
        return tokens
    index = index.to(tokens.positions.device)
    documents = None if tokens.documents is None else tokens.documents[index]
    return Tokens(tokens.positions[index], documents)


def followed_by(position: int | Tensor, positions: Tensor) -> bool:
    """Whether the positions, nobody left out, go up from ``position`` on in each row."""
    below = torch.as_tensor(position).expand(*positions.shape[:-1], 1) - 1
    if positions.shape[-1] == 1:
        return bool(((positions > below) | (positions == NOBODY)).all())
    reached = torch.cat((below, positions), -1).cummax(-1).values[..., :-1]
    return bool(((positions > reached) | (positions == NOBODY)).all())


def _documents(tokens: Tokens) -> Tensor:
    return tokens.documents if tokens.documents is not None else torch.zeros_like(tokens.positions)


def _rows(tensor: Tensor, batch: int | None) -> Tensor:
    return tensor if batch is None or tensor.dim() == 2 else tensor.expand(batch, -1)


Position = int | Tensor
"""A position for all rows, or int64 (B, 1) when batch rows differ."""


class Cache(ABC):
    """Keys and values of all layers that share one pattern.

    Once per step the model calls ``advance`` with the new tokens; then every layer calls
    ``append`` once, with its new keys and values. Positions within a row must go up. A cache
    holds values, not gradients. ``latest`` are the tokens that ``advance`` was last given.

    The promise: each step's attention equals the same rows of the run over the whole text. It
    can be kept only if no token may look at one that comes in a later step; ``advance`` refuses
    the patterns and steps for which that is not so.
    """

    def __init__(self, pattern: Pattern, layout: Layout) -> None:
        self.pattern, self.layout = pattern, layout
        self._position: Position = 0
        self._begin = UNBOUNDED  # the lowest position that was read
        self._shapes = (torch.Size(), torch.Size())  # of this step's keys and values
        self.latest: Tokens | None = None
        self._waiting: set[int] = set()  # the layers that have yet to append

    @property
    def position(self) -> Position:
        """The next position: a number, or int64 (B, 1) when batch rows differ."""
        return self._position

    @property
    @abstractmethod
    def length(self) -> int:
        """The number of slots in use, per batch row."""

    @property
    def nbytes(self) -> int:
        """Bytes of the stored keys and values: slots in use, all rows, heads and layers."""
        return self.length * self.layout.batch * self.layout.slot_bytes

    def advance(self, tokens: Tokens) -> Tokens:
        """Takes the step's new tokens; returns those of the keys that ``append`` will return.

        Raises InvalidArgument for another batch size or for positions that do not go up, and
        NotSupported where tokens of earlier steps may look at the new ones.
        """
        self._check(tokens)
        following = _after(self._position, tokens)
        seen = self._place(tokens, following)
        self._position, self._shapes = following, self.layout.shapes(tokens.length)
        self.latest, self._waiting = tokens, set(range(self.layout.layers))
        real = tokens.positions[tokens.positions != NOBODY]
        self._begin = min(self._begin, int(real.min())) if real.numel() else self._begin
        return seen

    @abstractmethod
    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tokens]:
        """Stores (B, Hk, m, ·) new keys and values; returns all that this step may look at.

        Returns keys and values (B, Hk, S, ·), and their tokens: the object that ``advance``
        returned. The order of the slots does not matter, the tokens say who is where.

        Raises InvalidArgument for other shapes, and for a layer that has appended since
        ``advance``, or would after ``truncate`` or ``reorder`` without another ``advance``.
        """

    def truncate(self, position: Position) -> None:
        """Forgets every token at this position or later; it becomes the next position.

        Raises InvalidArgument for a position that was not reached, and NotSupported if a key
        that has been evicted would be needed again.
        """
        asked, reached = torch.as_tensor(position), torch.as_tensor(self._position)
        if bool(((asked > reached) | (asked < 0)).any()):
            raise InvalidArgument(
                f"truncate({position}): 0 is the first position, "
                f"the next position is {self._position}"
            )
        self._forget(position)
        self._position, self._waiting = position, set()

    def reorder(self, index: Tensor) -> None:
        """Row b becomes what row index[b] was (int64, (B,)): for beam search."""
        if index.shape != (self.layout.batch,):
            raise InvalidArgument(
                f"reorder needs one row number for each of the {self.layout.batch} batch rows, "
                f"got shape {tuple(index.shape)}"
            )
        self._exchange(index)
        self._waiting = set()
        if isinstance(self._position, Tensor):
            self._position = self._position[index.to(self._position.device)]

    @abstractmethod
    def _place(self, tokens: Tokens, following: Position) -> Tokens:
        """The storage's own part of ``advance``; ``following`` is the position after the step."""

    @abstractmethod
    def _forget(self, position: Position) -> None:
        """The storage's own part of ``truncate``."""

    @abstractmethod
    def _exchange(self, index: Tensor) -> None:
        """The storage's own part of ``reorder``."""

    def _check_new(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Raises for keys and values that are not the step's, or that carry gradients.

        What it passes is the layer's for this step.
        """
        dtype = self.layout.dtype
        if layer not in self._waiting:
            raise InvalidArgument(
                f"layer {layer} of {self.layout.layers} has no tokens to write: each layer appends "
                "once after cache.advance(tokens)"
            )
        if (key.shape, value.shape) != self._shapes or key.dtype != dtype or value.dtype != dtype:
            self._refuse_new(key, value)
        if key.requires_grad or value.requires_grad:
            raise NotSupported("a cache holds no gradients: run the model under no_grad()")
        self._waiting.discard(layer)

    def _refuse_new(self, key: Tensor, value: Tensor) -> NoReturn:
        (key_shape, value_shape), dtype = self._shapes, self.layout.dtype
        raise InvalidArgument(
            f"key is {key.dtype} {tuple(key.shape)}, value is {value.dtype} "
            f"{tuple(value.shape)}; this step of the cache takes {dtype} {tuple(key_shape)} and "
            f"{tuple(value_shape)}"
        )

    def _check(self, tokens: Tokens) -> None:
        if tokens.batch is not None and tokens.batch != self.layout.batch:
            raise InvalidArgument(
                f"tokens of {tokens.batch} batch rows for a cache of {self.layout.batch}"
            )
        if not followed_by(self._position, tokens.positions):
            raise InvalidArgument(
                f"positions must go up within each row, from {self._position} on; "
                f"got {tokens.positions.tolist()}"
            )
        if not _settled(self.pattern, self._position):
            raise NotSupported(
                f"under {self.pattern} tokens before position {self._position} may look at later "
                "ones, so reading in steps would not equal reading at once: read the whole text "
                "in one step, or use causal & (…), under which nobody looks ahead"
            )


def _settled(pattern: Pattern, position: Position) -> bool:
    """Whether no token before the position may attend to one at it or after it.

    Another question than ``looks_ahead``: of one position, at any length, so by bounds.
    """
    start = torch.as_tensor(position)
    zero, top = torch.zeros_like(start), torch.full_like(start, UNBOUNDED)
    verdict = pattern.verdict(Bounds(zero, start - 1, zero, top), Bounds(start, top, zero, top))
    return bool(((verdict == EMPTY) | (start == 0)).all())


def _after(position: Position, tokens: Tokens) -> Position:
    if tokens.length == 0:
        return position
    reached = tokens.positions.amax(-1, keepdim=True) + 1
    if tokens.batch is None and isinstance(position, int):
        return max(int(reached), position)
    return torch.maximum(reached, torch.as_tensor(position))


class LayerCache(NamedTuple):
    """A cache, and the number that a layer has in it.

    Whoever runs the layers calls ``cache.advance(tokens)`` once a step, before the first of them.
    """

    cache: Cache
    layer: int
