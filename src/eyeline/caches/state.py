"""A cache that does not grow: a few tensors a layer, in which all that was read is summed up."""

from __future__ import annotations

from typing import NoReturn, final

import torch
from torch import Tensor

from eyeline.caches.base import Cache
from eyeline.caches.buffers import Layout
from eyeline.errors import NotSupported
from eyeline.patterns import Pattern
from eyeline.tokens import Tokens
from eyeline.tokens.slots import Position, Reached

Kept = tuple[Tensor, ...]


@final
class State(Cache):
    """Keeps ``start``, tensors (B, …) of each layer, as a mechanism changes them step by step.

    It has the bookkeeping of every cache, but no keys: after ``advance(tokens)`` each layer takes
    what is ``kept`` and gives what to ``keep``, once. ``nbytes`` is the same at any position. What
    the last step began with is held too, so that a step that was interrupted can be taken back:
    ``truncate`` goes to 0, or to where the last step began, and no further (NotSupported).

    continues: where tokens name documents, bool (B or 1,): whether the step begins in the document
    that the sums are of; else None.
    """

    def __init__(self, pattern: Pattern, layout: Layout, start: Kept) -> None:
        super().__init__(pattern, layout)
        self._start = start
        self._now: list[Kept] = [start] * layout.layers
        self._then: tuple[Reached, list[Kept]] | None = None
        self.continues: Tensor | None = None

    @property
    def length(self) -> int:
        """0: there are no slots."""
        return 0

    @property
    def nbytes(self) -> int:
        """Bytes of what the layers keep, and of what they kept before the last step."""
        each = sum(x.numel() * x.element_size() for x in self._start)
        return 2 * each * self.layout.layers

    def append(self, layer: int, key: Tensor, value: Tensor) -> NoReturn:
        raise NotSupported(
            "this cache keeps sums, not keys: the mechanism itself makes a step, mechanism.step(…)"
        )

    def kept(self, layer: int, key: Tensor, value: Tensor) -> Kept:
        """What the layer kept so far; key, value: (B, Hk, m, ·), the step's new ones.

        Raises InvalidArgument for other shapes, and for a layer that did so since ``advance``;
        NotSupported for keys and values that carry gradients.
        """
        self._check_new(layer, key, value)
        return self._now[layer]

    def keep(self, layer: int, kept: Kept) -> None:
        """What the layer keeps from now on: new tensors, not the old ones written over."""
        self._now[layer] = kept

    def _place(self, tokens: Tokens, following: Reached) -> Tokens:
        goes_on = self._reached.goes_on(tokens)
        self.continues = None if goes_on is None else goes_on[:, 0]
        self._then = self._reached, list(self._now)
        return tokens

    def _forget(self, position: Position) -> None:
        if _same(position, self.position):
            return
        if _same(position, 0):
            self._now = [self._start] * self.layout.layers
        elif self._then is not None and self._was_at(position):
            self._now = self._then[1]
        else:
            raise NotSupported(
                f"truncate({position}): sums cannot forget single tokens; go back to 0, or to "
                "where the last step began"
            )
        self._then = None

    def _was_at(self, position: Position) -> bool:
        """Whether the last step began at this position of the document that was read last."""
        before = self._then[0] if self._then is not None else Reached()
        documents = before.document, self._reached.document
        if documents[0] is not None and documents[1] is not None:
            return _same(position, before.position) and _same(documents[0], documents[1])
        return _same(position, before.position) and documents == (None, None)

    def _exchange(self, index: Tensor) -> None:
        index = index.to(self.layout.device)
        self._now = [tuple(x.index_select(0, index) for x in kept) for kept in self._now]
        self._then = None


def _same(one: Position, other: Position) -> bool:
    return bool((torch.as_tensor(one) == torch.as_tensor(other)).all())
