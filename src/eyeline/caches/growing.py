"""A cache that keeps every key."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from eyeline.caches.base import Cache, of_document
from eyeline.caches.buffers import Buffers, Layout, Strip
from eyeline.errors import InvalidArgument
from eyeline.patterns import Pattern
from eyeline.tokens import NOBODY, Tokens
from eyeline.tokens.slots import Position, Reached, exchanged, first, join, only

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

    def stored(self, layer: int) -> tuple[Tensor, Tensor]:
        """The keys and values (B, Hk, S, ·) of all slots in use.

        Raises InvalidArgument for a layer that has yet to append this step's.
        """
        if layer in self._waiting:
            raise InvalidArgument(f"layer {layer} has not appended the tokens of this step")
        keys, values = self._buffers.keys[layer], self._buffers.values[layer]
        return keys[:, :, : self.length], values[:, :, : self.length]

    def _place(self, tokens: Tokens, following: Reached) -> Tokens:
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
        kept = self._tokens.positions < position
        tokens = only(self._tokens, kept | ~of_document(self._tokens, self._reached))
        used = torch.atleast_2d(tokens.positions != NOBODY).any(0).nonzero()
        self._tokens = first(tokens, int(used[-1]) + 1 if len(used) else 0)

    def _exchange(self, index: Tensor) -> None:
        self._buffers.reorder(index, used=self.length)
        self._tokens = exchanged(self._tokens, index)
