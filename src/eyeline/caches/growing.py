"""A cache that keeps every key."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from eyeline.caches.base import Cache, Position, exchanged, first, join, only
from eyeline.caches.buffers import Buffers, Layout, Strip
from eyeline.patterns import Pattern
from eyeline.tokens import NOBODY, Tokens

_CHUNK = 256


@final
class Growing(Cache):
    """Keeps every key and value; slot i holds the i-th token.

    The buffers grow by half, at least by 256 slots, so that each key is copied a few times at
    most. ``append`` writes in place and returns views.
    """

    def __init__(self, pattern: Pattern, layout: Layout) -> None:
        super().__init__(pattern, layout)
        self._buffers = Buffers(layout)
        self._tokens = Tokens.arange(0, 0)
        self._strip = Strip(self._buffers, 0, 0, length=0)
        self._start = 0

    @property
    def length(self) -> int:
        return self._tokens.length

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tokens]:
        self._check_new(layer, key, value)
        keys, values = self._strip.store(layer, key, value)
        return (keys, values, self._tokens) if self._start else (key, value, self._tokens)

    def _place(self, tokens: Tokens, following: Position) -> Tokens:
        self._start = self._tokens.length
        length = self._start + tokens.length
        if length > self._buffers.room:
            room = self._buffers.room + max(_CHUNK, self._buffers.room // 2)
            self._buffers.reserve(max(length, room), used=self._start)
        self._strip = Strip(self._buffers, self._start, length, length=length)
        # The very object on the first step: queries and keys then share one plan.
        self._tokens = tokens if self._start == 0 else join(self._tokens, tokens)
        return self._tokens

    def _forget(self, position: Position) -> None:
        tokens = only(self._tokens, self._tokens.positions < position)
        used = torch.atleast_2d(tokens.positions != NOBODY).any(0).nonzero()
        self._tokens = first(tokens, int(used[-1]) + 1 if len(used) else 0)

    def _exchange(self, index: Tensor) -> None:
        self._buffers.reorder(index, used=self.length)
        self._tokens = exchanged(self._tokens, index)


# A cache that keeps every key, and beside each key some whole numbers.


@final
class Marked(Cache):
    """``Growing``, with ``marks`` numbers for each key: what a mechanism found out about it once.

    After ``advance`` each layer calls ``append`` and ``mark`` once. maker: what makes the marks.
    """

    def __init__(self, pattern: Pattern, layout: Layout, marks: int, maker: Hashable) -> None:
        super().__init__(pattern, layout)
        self.maker = maker
        self._keys = Growing(pattern, layout)
        numbers = replace(layout, head_dim=marks, value_dim=0, dtype=torch.int64)
        self._marks = Growing(pattern, numbers)

    @property
    def length(self) -> int:
        return self._keys.length

    @property
    def nbytes(self) -> int:
        """Bytes of the stored keys, values and marks."""
        return self._keys.nbytes + self._marks.nbytes

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tokens]:
        return self._keys.append(layer, key, value)

    def mark(self, layer: int, marks: Tensor) -> Tensor:
        """Stores the new keys' int64 (B, Hk, m, marks); returns those of all keys, (…, S, …).

        Raises InvalidArgument as ``append`` does.
        """
        return self._marks.append(layer, marks, marks[..., :0])[0]

    def _place(self, tokens: Tokens, following: Position) -> Tokens:
        self._marks.advance(tokens)
        return self._keys.advance(tokens)

    def _forget(self, position: Position) -> None:
        for each in (self._keys, self._marks):
            each.truncate(position)

    def _exchange(self, index: Tensor) -> None:
        for each in (self._keys, self._marks):
            each.reorder(index)
