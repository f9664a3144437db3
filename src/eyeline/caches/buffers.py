"""Room for keys and values, one pair of tensors a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from eyeline.memory import traced


@dataclass(frozen=True)
class Layout:
    """The shape of what is stored: ``layers`` times (batch, num_kv_heads, slots, width)."""

    layers: int
    batch: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def slot_bytes(self) -> int:
        """Bytes that one slot takes in one batch row, over all layers."""
        width = self.head_dim + self.value_dim
        return self.layers * self.num_kv_heads * width * self.dtype.itemsize

    def shapes(self, count: int) -> tuple[torch.Size, torch.Size]:
        """The shapes of one layer's keys and values of this many tokens."""
        start = (self.batch, self.num_kv_heads, count)
        return torch.Size((*start, self.head_dim)), torch.Size((*start, self.value_dim))


@final
class Buffers:
    """Keys (layers, B, Hk, room, E) and values (layers, B, Hk, room, Ev), which can grow."""

    def __init__(self, layout: Layout) -> None:
        self.layout, self.room = layout, 0
        self.keys = self._allocate(0, layout.head_dim)
        self.values = self._allocate(0, layout.value_dim)

    def reserve(self, room: int, *, used: int) -> None:
        """Makes room for this many slots; the first ``used`` keep what they hold."""
        if room <= self.room:
            return
        self.keys = self._moved(self.keys, room, used)
        self.values = self._moved(self.values, room, used)
        self.room = room

    def reorder(self, index: Tensor, *, used: int) -> None:
        """Row b becomes what row index[b] was, in the first ``used`` slots: others hold nothing."""
        index = index.to(self.layout.device)
        for kept in (self.keys, self.values):
            kept[..., :used, :] = kept[..., :used, :].index_select(1, index)

    def _moved(self, old: Tensor, room: int, used: int) -> Tensor:
        new = self._allocate(room, old.shape[-1])
        new[..., :used, :] = old[..., :used, :]
        return new

    def _allocate(self, slots: int, width: int) -> Tensor:
        layout = self.layout
        shape = (layout.layers, layout.batch, layout.num_kv_heads, slots, width)
        # Tensors made in inference mode could not be written to outside of it. Zeros, not
        # whatever was there: masked slots must hold finite numbers.
        with torch.inference_mode(False):
            return torch.zeros(shape, dtype=layout.dtype, device=layout.device)


@final
class Strip:
    """One step's new slots start … stop - 1 and all slots before ``length``, layer by layer.

    The views of all layers are cut once a step: while a model writes, each layer's own cutting
    would take longer than its copying. torch.compile does not see that views made outside of a
    graph overlap, so there each layer cuts its own.
    """

    def __init__(self, buffers: Buffers, start: int, stop: int, *, length: int) -> None:
        both = buffers.keys, buffers.values
        self._both, self._new, self._length = both, slice(start, stop), length
        self._new_keys, self._new_values = (x[..., start:stop, :].unbind(0) for x in both)
        self._keys, self._values = (x[..., :length, :].unbind(0) for x in both)

    def store(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Writes the new slots; returns the slots that are in use."""
        if traced():
            return self._stored(0, layer, key), self._stored(1, layer, value)
        self._new_keys[layer].copy_(key)
        self._new_values[layer].copy_(value)
        return self._keys[layer], self._values[layer]

    def _stored(self, which: int, layer: int, new: Tensor) -> Tensor:
        whole = self._both[which][layer]
        whole[:, :, self._new] = new
        return whole[:, :, : self._length]
