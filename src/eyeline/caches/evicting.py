"""A cache that forgets: it keeps exactly the keys that can still be attended to."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor
from torch.nn.functional import pad

from eyeline.caches.base import Cache, needed, of_document
from eyeline.caches.buffers import Buffers, Layout, Strip
from eyeline.errors import NotSupported
from eyeline.patterns import Pattern
from eyeline.tokens import NOBODY, Tokens
from eyeline.tokens.slots import Position, Reached, exchanged, join, only, take

_CHUNK = 64


@final
class Evicting(Cache):
    """Keeps the keys for which ``pattern.needed`` is True, in slots that are used again.

    A single new token takes the first slot whose key is no longer needed, in each batch row its
    own. Several new tokens (a prompt) are looked at together with what was kept; afterwards only
    what is needed is stored. Under ``streaming(size, sinks)`` this is a ring with sinks.

    slots: how many the pattern is known to need. The buffers grow towards that number as the
    text does, and past it only if more keys are needed.
    """

    def __init__(self, pattern: Pattern, layout: Layout, *, slots: int = 0) -> None:
        super().__init__(pattern, layout)
        self._buffers, self._slots = Buffers(layout), slots
        self._tokens = self._seen = Tokens.arange(0, 0)
        self._step: Strip | _Scattered | _Many = Strip(self._buffers, 0, 0, length=0)

    @property
    def length(self) -> int:
        return self._tokens.length

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tokens]:
        self._check_new(layer, key, value)
        return *self._step.store(layer, key, value), self._seen

    def _place(self, tokens: Tokens, following: Reached) -> Tokens:
        used = self._tokens.length
        place = self._place_one if tokens.length == 1 else self._place_many
        slots = place(tokens, following)
        length = self._tokens.length
        if length > self._buffers.room:
            self._buffers.reserve(self._room(length), used=used)
        if tokens.length != 1:
            self._step = _Many(self._buffers, slots, used=used, length=length)
        elif bool((slots == slots[0]).all()):
            slot = int(slots.reshape(-1)[0])
            self._step = Strip(self._buffers, slot, slot + 1, length=length)
        else:
            self._step = _Scattered(self._buffers, slots[:, 0], length=length)
        return self._seen

    def _place_one(self, token: Tokens, following: Reached) -> Tensor:
        """The slot that the token takes, (1,) or (B, 1)."""
        # What it may attend to: with its own position as the next one, in its own document.
        asked = following._replace(position=self._before(token))
        kept = needed(self.pattern, self._tokens, asked)
        # One more slot at the end, for rows in which no slot is free.
        wide = join(only(self._tokens, kept), token)
        free = pad(~kept, (0, 1), value=True).expand(wide.positions.shape)
        slot = free.long().argmax(-1, keepdim=True)
        width = wide.length if bool((slot == wide.length - 1).any()) else wide.length - 1
        self._tokens = self._seen = wide.mapped(lambda column: _moved(column, slot)[..., :width])
        return slot

    def _before(self, token: Tokens) -> Position:
        """The position from which the token's step goes on: 0 where it begins a document."""
        goes_on, position = self._reached.goes_on(token), self.position
        if goes_on is None or bool(goes_on.all()):
            return position
        if isinstance(position, int) and len(goes_on) == 1:
            return 0
        return torch.where(goes_on, torch.as_tensor(position), 0)

    def _place_many(self, tokens: Tokens, following: Reached) -> Tensor:
        """Which of the slots looked at are kept, (m,) or (B, m)."""
        used = self._tokens.length
        self._seen = join(self._tokens, tokens) if used else tokens
        kept = needed(self.pattern, self._seen, following)
        count = int(kept.sum(-1).max()) if kept.numel() else 0
        slots = kept.long().argsort(dim=-1, descending=True, stable=True)[..., :count]
        self._tokens = take(only(self._seen, kept), slots)
        return slots

    def _room(self, length: int) -> int:
        room = max(length, self._buffers.room + max(_CHUNK, self._buffers.room // 2))
        return min(room, self._slots) if length <= self._slots else room

    def _forget(self, position: Position) -> None:
        current = of_document(self._tokens, self._reached)
        lost = _missing(only(self._tokens, current), self.pattern, position, begin=self._begin)
        if lost:
            raise NotSupported(
                f"truncate({position}): under {self.pattern} that needs the keys at positions "
                f"{lost[0]} to {lost[-1]} again, which have been evicted; read the text again"
            )
        self._tokens = only(self._tokens, ~current | (self._tokens.positions < position))

    def _exchange(self, index: Tensor) -> None:
        self._buffers.reorder(index, used=self.length)
        self._tokens = exchanged(self._tokens, index)


@final
class _Scattered:
    """One new token, in each batch row into a slot of its own."""

    def __init__(self, buffers: Buffers, slots: Tensor, *, length: int) -> None:
        device = buffers.layout.device
        self.buffers, self.length = buffers, length
        self.slots, self.rows = slots.to(device), torch.arange(len(slots), device=device)

    def store(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = self.buffers.keys[layer], self.buffers.values[layer]
        keys[self.rows, :, self.slots] = key[:, :, 0]
        values[self.rows, :, self.slots] = value[:, :, 0]
        return keys[:, :, : self.length], values[:, :, : self.length]


@final
class _Many:
    """Several new tokens: all are looked at together with what was kept, some are kept."""

    def __init__(self, buffers: Buffers, slots: Tensor, *, used: int, length: int) -> None:
        self.buffers, self.used, self.length = buffers, used, length
        self.slots = slots.to(buffers.layout.device)

    def store(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        return (
            self._replace(self.buffers.keys[layer], key),
            self._replace(self.buffers.values[layer], value),
        )

    def _replace(self, buffer: Tensor, new: Tensor) -> Tensor:
        seen = torch.cat((buffer[:, :, : self.used], new), 2) if self.used else new
        if self.slots.dim() == 1:
            kept = seen.index_select(2, self.slots)
        else:
            index = self.slots[:, None, :, None].expand(-1, seen.shape[1], -1, seen.shape[3])
            kept = seen.gather(2, index)
        buffer[:, :, : self.length] = kept
        return seen


def _moved(wide: Tensor, slot: Tensor) -> Tensor:
    """What stands in the last slot moves to another; padding stays behind."""
    last = wide[..., -1:].clone()
    return wide.index_fill(-1, torch.tensor([wide.shape[-1] - 1]), NOBODY).scatter(-1, slot, last)


def _missing(tokens: Tokens, pattern: Pattern, position: Position, *, begin: int) -> list[int]:
    """Positions of the text before this one that would be needed from it on, and are not here."""
    start = torch.as_tensor(position)
    past = Tokens.arange(0, int(start.max()))
    positions = torch.atleast_2d(tokens.positions)
    there = torch.zeros(len(positions), past.length + 1, dtype=torch.bool)
    inside = torch.where(positions < past.length, positions, NOBODY)
    there.scatter_(-1, inside + 1, True)
    missing = pattern.needed(past, start) & (past.positions < start) & ~there[:, 1:]
    missing &= past.positions >= begin
    return missing.any(0).nonzero()[:, 0].tolist()
