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
from eyeline.tokens.slots import Position, Reached


class Cache(ABC):
    """Keys and values of all layers that share one pattern.

    Once per step the model calls ``advance`` with the new tokens; then every layer calls
    ``append`` once, with its new keys and values. Positions go up within each row, or where
    tokens name documents within each document; documents come one after another, with numbers
    that go up. A cache holds values, not gradients. ``latest`` are the tokens that ``advance``
    was last given.

    The promise: each step's attention equals the same rows of the run over the whole text. It
    can be kept only if no token may look at one that comes in a later step; ``advance`` refuses
    the patterns and steps for which that is not so.
    """

    def __init__(self, pattern: Pattern, layout: Layout) -> None:
        self.pattern, self.layout = pattern, layout
        self._reached = Reached()
        self._names: list[str] | None = None  # what all tokens name besides positions
        self._begin = UNBOUNDED  # the lowest position that was read
        self._shapes = (torch.Size(), torch.Size())  # of this step's keys and values
        self.latest: Tokens | None = None
        self._waiting: set[int] = set()  # the layers that have yet to append

    @property
    def position(self) -> Position:
        """The next position in the document that was read last: a number, or int64 (B, 1)."""
        return self._reached.position

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
        NotSupported where tokens of earlier steps may attend to the new ones.
        """
        self._check(tokens)
        following = self._reached.after(tokens)
        seen = self._place(tokens, following)
        self._reached, self._shapes = following, self.layout.shapes(tokens.length)
        self._names = _names_of(tokens)
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

        Where tokens name documents: every token of the document that was read last.

        Raises InvalidArgument for a position that was not reached, and NotSupported if a key
        that has been evicted would be needed again.
        """
        asked, reached = torch.as_tensor(position), torch.as_tensor(self.position)
        if bool(((asked > reached) | (asked < 0)).any()):
            raise InvalidArgument(
                f"truncate({position}): 0 is the first position, "
                f"the next position is {self.position}"
            )
        self._forget(position)
        self._reached, self._waiting = self._reached._replace(position=position), set()

    def reorder(self, index: Tensor) -> None:
        """Row b becomes what row index[b] was (int64, (B,)): for beam search."""
        if index.shape != (self.layout.batch,):
            raise InvalidArgument(
                f"reorder needs one row number for each of the {self.layout.batch} batch rows, "
                f"got shape {tuple(index.shape)}"
            )
        self._exchange(index)
        self._waiting = set()
        self._reached = self._reached.exchanged(index)

    @abstractmethod
    def _place(self, tokens: Tokens, following: Reached) -> Tokens:
        """The storage's own part of ``advance``; following: what the step comes to."""

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
        if self._names is not None and self._names != _names_of(tokens):
            raise InvalidArgument(
                f"tokens of one step name {_listed(self._names)} and those of the next "
                f"{_listed(_names_of(tokens))}: all steps name the same"
            )
        if not self._reached.precedes(tokens):
            raise InvalidArgument(
                f"positions must go up within each row, from {self.position} on"
                + self._where(tokens)
            )
        start = torch.as_tensor(self.position)
        goes_on = self._reached.goes_on(tokens)
        if goes_on is not None:  # a new document has nothing before it
            start = torch.where(goes_on, start.to(goes_on.device), 0)
        if not _settled(self.pattern, start):
            raise NotSupported(
                f"under {self.pattern} tokens before position {self.position} may attend to later "
                "ones, so reading in steps would not equal reading at once: read the whole text "
                "in one step, or use causal & (…), under which no token attends ahead"
            )

    def _where(self, tokens: Tokens) -> str:
        got = f"; got {tokens.positions.tolist()}"
        if tokens.documents is None:
            return f"{got}: of a tree of drafts keep one path, and read the tree without a cache"
        return (
            f" or from the start of another document, with numbers that go up{got} in the "
            f"documents {tokens.documents.tolist()}"
        )


def needed(pattern: Pattern, tokens: Tokens, reached: Reached) -> Tensor:
    """Which keys may still be attended to, bool of their positions' shape."""
    keys = pattern.needed(tokens, reached.position)
    if tokens.documents is None or reached.document is None:
        return keys
    return keys & of_document(tokens, reached)


def of_document(tokens: Tokens, reached: Reached) -> Tensor:
    """Which tokens are of the document that was read last; all, where none are named."""
    if tokens.documents is None or reached.document is None:
        return torch.ones_like(tokens.positions, dtype=torch.bool)
    document = reached.document
    return tokens.documents == (document if len(document) > 1 else document[0])


def _names_of(tokens: Tokens) -> list[str]:
    names = ("documents", "segments", "encoding_positions")
    return [name for name in names if getattr(tokens, name) is not None]


def _listed(names: list[str]) -> str:
    return " and ".join(names) if names else "positions alone"


def _settled(pattern: Pattern, start: Tensor) -> bool:
    """Whether no token before a position may attend to one at it or after it.

    Another question than ``looks_ahead``: of one position, at any length, so by bounds.
    """
    zero, top = torch.zeros_like(start), torch.full_like(start, UNBOUNDED)
    before = Bounds(zero, start - 1, zero, top, zero, top)
    verdict = pattern.verdict(before, Bounds(start, top, zero, top, zero, top))
    return bool(((verdict == EMPTY) | (start == 0)).all())


class LayerCache(NamedTuple):
    """A cache, and the number that a layer has in it.

    Whoever runs the layers calls ``cache.advance(tokens)`` once a step, before the first of them.
    """

    cache: Cache
    layer: int
