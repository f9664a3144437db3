"""A cache that keeps every key, and beside each key some whole numbers."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from eyeline.caches.base import Cache, Position
from eyeline.caches.buffers import Layout
from eyeline.caches.growing import Growing
from eyeline.patterns import Pattern
from eyeline.tokens import Tokens


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
