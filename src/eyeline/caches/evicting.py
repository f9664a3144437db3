"""A cache that forgets: it keeps exactly the keys that can still be attended to."""

from __future__ import annotations

from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.nn.functional import pad

from eyeline.caches.base import Cache, Position, exchanged, join, only, take
from eyeline.caches.buffers import Buffers, Layout, Strip
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
        self._step: Strip | _Scattered | _Many = Strip(self._buffers, 0, 0, length=0)

    @property
    def length(self) -> int:
        return self._tokens.length

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tokens]:
        self._check_new(layer, key, value)
        return *self._step.store(layer, key, value), self._seen

    def _place(self, tokens: Tokens, following: Position) -> Tokens:
        used = self._tokens.length
        slots = (
            self._place_one(tokens) if tokens.length == 1 else self._place_many(tokens, following)
        )
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

    def _place_one(self, token: Tokens) -> Tensor:
        """The slot that the token takes, (1,) or (B, 1)."""
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
        return slot

    def _place_many(self, tokens: Tokens, following: Position) -> Tensor:
        """Which of the slots looked at are kept, (m,) or (B, m)."""
        used = self._tokens.length
        self._seen = join(self._tokens, tokens) if used else tokens
        needed = self.pattern.needed(self._seen, following)
        count = int(needed.sum(-1).max()) if needed.numel() else 0
        slots = needed.long().argsort(dim=-1, descending=True, stable=True)[..., :count]
        self._tokens = take(only(self._seen, needed), slots)
        return slots

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


# Positions counted anew among the tokens that a cache has kept.


class Ranks(NamedTuple):
    """Positions for an encoding: int64, of the shapes of the tokens' positions."""

    query: Tensor
    key: Tensor


def recount(q_tokens: Tokens, k_tokens: Tokens) -> Ranks:
    """Token at position p gets the number of kept keys before p; nobody stays nobody.

    A query stands among the keys of its own step, so one attention call with these positions
    equals attention over the kept tokens at positions 0 … m - 1. Deeper layers still differ from
    such a run, since what they kept has seen tokens that are gone. Xiao et al. 2023.
    """
    present = k_tokens.positions != NOBODY
    ordered = torch.where(present, k_tokens.positions, torch.iinfo(torch.int64).max).sort(-1).values
    return Ranks(_rank(q_tokens.positions, ordered), _rank(k_tokens.positions, ordered))


def _rank(positions: Tensor, ordered: Tensor) -> Tensor:
    if ordered.dim() == 2:
        positions = positions.expand(ordered.shape[0], -1)
    elif positions.dim() == 2:
        ordered = ordered.expand(positions.shape[0], -1)
    rank = torch.searchsorted(ordered.contiguous(), positions.contiguous())
    return torch.where(positions == NOBODY, NOBODY, rank)
