"""A cache that keeps exactly the keys that can still be looked at."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor
from torch.nn.functional import pad

from eyeline.caches.base import Cache, Position
from eyeline.caches.buffers import Buffers, Layout
from eyeline.caches.slots import exchanged, join, only, take
from eyeline.errors import NotSupported
from eyeline.patterns import Pattern
from eyeline.tokens import NOBODY, Tokens

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
        self._used = 0
        self._step: _One | _Many = _One(0)

    @property
    def length(self) -> int:
        return self._tokens.length

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tokens]:
        self._check_new(key, value)
        keys, values = self._buffers.keys[layer], self._buffers.values[layer]
        step, length = self._step, self._tokens.length
        return step.store(keys, key, length), step.store(values, value, length), self._seen

    def _place(self, tokens: Tokens, following: Position) -> Tokens:
        used = self._tokens.length
        if tokens.length == 1:
            self._place_one(tokens)
        else:
            self._place_many(tokens, following)
        if self._tokens.length > self._buffers.room:
            self._buffers.reserve(self._room(self._tokens.length), used=used)
        return self._seen

    def _place_one(self, token: Tokens) -> None:
        needed = self.pattern.needed(self._tokens, self._position)
        # One more slot at the end, for rows in which no slot is free.
        wide = join(only(self._tokens, needed), token)
        free = pad(~needed, (0, 1), value=True).expand(wide.positions.shape)
        slot = free.long().argmax(-1, keepdim=True)
        width = wide.length if bool((slot == wide.length - 1).any()) else wide.length - 1
        self._tokens = self._seen = Tokens(
            _moved(wide.positions, slot, NOBODY)[..., :width],
            None if wide.documents is None else _moved(wide.documents, slot, 0)[..., :width],
        )
        self._step = _One(int(slot[0]) if slot.dim() == 1 else slot[:, 0])

    def _place_many(self, tokens: Tokens, following: Position) -> None:
        used = self._tokens.length
        self._seen = join(self._tokens, tokens) if used else tokens
        needed = self.pattern.needed(self._seen, following)
        count = int(needed.sum(-1).max()) if needed.numel() else 0
        slots = needed.long().argsort(dim=-1, descending=True, stable=True)[..., :count]
        self._tokens = take(only(self._seen, needed), slots)
        self._step = _Many(used, slots)

    def _room(self, length: int) -> int:
        room = max(length, self._buffers.room + max(_CHUNK, self._buffers.room // 2))
        return min(room, self._slots) if length <= self._slots else room

    def _forget(self, position: Position) -> None:
        lost = _missing(self._tokens, self.pattern, position, begin=self._begin)
        if lost:
            raise NotSupported(
                f"truncate({position}): under {self.pattern} that needs the keys at positions "
                f"{lost[0]} to {lost[-1]} again, which have been evicted; read the text again"
            )
        self._tokens = only(self._tokens, self._tokens.positions < position)

    def _exchange(self, index: Tensor) -> None:
        self._buffers.reorder(index)
        self._tokens = exchanged(self._tokens, index)


@final
class _One:
    """One new token, into one slot for all rows or one slot for each."""

    def __init__(self, slot: int | Tensor) -> None:
        if isinstance(slot, Tensor) and bool((slot == slot[0]).all()):
            slot = int(slot[0])
        self.slot = slot

    def store(self, buffer: Tensor, new: Tensor, length: int) -> Tensor:
        slot = self.slot
        if isinstance(slot, int):
            buffer[:, :, slot : slot + 1] = new
        else:
            rows = torch.arange(len(slot), device=buffer.device)
            buffer[rows, :, slot.to(buffer.device)] = new[:, :, 0]
        return buffer if length == buffer.shape[2] else buffer[:, :, :length]


@final
class _Many:
    """Several new tokens: all are looked at, the slots that are listed are kept."""

    def __init__(self, used: int, slots: Tensor) -> None:
        self.used, self.slots = used, slots

    def store(self, buffer: Tensor, new: Tensor, length: int) -> Tensor:
        seen = torch.cat((buffer[:, :, : self.used], new), 2) if self.used else new
        slots = self.slots.to(buffer.device)
        if slots.dim() == 1:
            buffer[:, :, :length] = seen.index_select(2, slots)
        else:
            index = slots[:, None, :, None].expand(-1, seen.shape[1], -1, seen.shape[3])
            buffer[:, :, :length] = seen.gather(2, index)
        return seen


def _moved(wide: Tensor, slot: Tensor, nothing: int) -> Tensor:
    """What stands in the last slot moves to another; nothing stays behind."""
    last = wide[..., -1:].clone()
    return wide.index_fill(-1, torch.tensor([wide.shape[-1] - 1]), nothing).scatter(-1, slot, last)


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
