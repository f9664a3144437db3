"""A cache that does not grow: a few tensors a layer, in which all that was read is summed up."""

from __future__ import annotations

from typing import NoReturn, final

import torch
from torch import Tensor

from eyeline.caches.base import Cache, Position
from eyeline.caches.buffers import Layout
from eyeline.errors import NotSupported
from eyeline.patterns import Pattern
from eyeline.tokens import NOBODY, Tokens

Kept = tuple[Tensor, ...]


@final
class State(Cache):
    """Keeps ``start``, tensors (B, …) of each layer, as a mechanism changes them step by step.

    It has the bookkeeping of every cache, but no keys: after ``advance(tokens)`` each layer takes
    what is ``kept`` and gives what to ``keep``, once. ``nbytes`` is the same at any position. What
    the last step began with is held too, so that a step that was interrupted can be taken back:
    ``truncate`` goes to 0, or to where the last step began, and no further (NotSupported).

    apart: whether documents are kept apart. ``continues`` is then bool (B or 1,): whether the step
    begins in the document that the sums are of. In steps, documents come one after another, with
    numbers that go up (NotSupported).
    """

    def __init__(
        self, pattern: Pattern, layout: Layout, start: Kept, *, apart: bool = False
    ) -> None:
        super().__init__(pattern, layout)
        self._start = start
        self._now: list[Kept] = [start] * layout.layers
        self._then: tuple[Position, list[Kept], Tensor] | None = None
        self._apart, self._document = apart, _nobody()
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

    def _place(self, tokens: Tokens, following: Position) -> Tokens:
        document = self._document
        if self._apart and tokens.length:
            self.continues, document = self._followed(tokens.host)
        self._then = self._position, list(self._now), self._document
        self._document = document
        return tokens

    def _followed(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Whether each row goes on with its document, and the one that it ends with."""
        there = torch.atleast_2d(tokens.positions) != NOBODY
        named = tokens.documents
        named = torch.zeros_like(there, dtype=torch.int64) if named is None else named
        before = self._document[:, None].expand(len(there), 1)
        found = torch.where(there, torch.atleast_2d(named), NOBODY)
        so_far = torch.cat((before, found), 1).cummax(1).values
        if bool((there & (found < so_far[:, 1:])).any()):
            raise NotSupported(
                "a state holds the sums of one document: in steps, documents come one after "
                "another, and their numbers go up"
            )
        first = there & (there.cumsum(1) == 1)
        opening = torch.where(first, found, NOBODY).amax(1)
        goes_on = ~there.any(1) | (opening == before[:, 0]) | (before[:, 0] == NOBODY)
        return goes_on, so_far[:, -1]

    def _forget(self, position: Position) -> None:
        if _same(position, self._position):
            return
        if _same(position, 0):
            self._now, self._document = [self._start] * self.layout.layers, _nobody()
        elif self._then is not None and _same(position, self._then[0]):
            _, self._now, self._document = self._then
        else:
            raise NotSupported(
                f"truncate({position}): sums cannot forget single tokens; go back to 0, or to "
                "where the last step began"
            )
        self._then = None

    def _exchange(self, index: Tensor) -> None:
        index = index.to(self.layout.device)
        self._now = [tuple(x.index_select(0, index) for x in kept) for kept in self._now]
        if len(self._document) > 1:
            self._document = self._document[index.to(self._document.device)]
        self._then = None


def _same(one: Position, other: Position) -> bool:
    return bool((torch.as_tensor(one) == torch.as_tensor(other)).all())


def _nobody() -> Tensor:
    return torch.full((1,), NOBODY)
