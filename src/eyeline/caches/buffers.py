"""Room for keys and values, one pair of tensors a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor


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


@final
class Buffers:
    """Keys (B, Hk, room, E) and values (B, Hk, room, Ev) of each layer, which can grow."""

    def __init__(self, layout: Layout) -> None:
        self.layout, self.room = layout, 0
        self.keys, self.values = (
            self._allocate(0, layout.head_dim),
            self._allocate(0, layout.value_dim),
        )

    def reserve(self, room: int, *, used: int) -> None:
        """Makes room for this many slots; the first ``used`` keep what they hold."""
        if room <= self.room:
            return
        self.keys = self._moved(self.keys, room, used)
        self.values = self._moved(self.values, room, used)
        self.room = room

    def reorder(self, index: Tensor) -> None:
        """Row b becomes what row index[b] was."""
        index = index.to(self.layout.device)
        self.keys = [keys.index_select(0, index) for keys in self.keys]
        self.values = [values.index_select(0, index) for values in self.values]

    def _moved(self, old: list[Tensor], room: int, used: int) -> list[Tensor]:
        new = self._allocate(room, old[0].shape[-1]) if old else []
        for before, after in zip(old, new, strict=True):
            after[:, :, :used] = before[:, :, :used]
        return new

    def _allocate(self, slots: int, width: int) -> list[Tensor]:
        layout = self.layout
        shape = (layout.batch, layout.num_kv_heads, slots, width)
        # Tensors made in inference mode could not be written to outside of it.
        with torch.inference_mode(False):
            # Zeros, not whatever was there: masked slots must hold finite numbers.
            return [
                torch.zeros(shape, dtype=layout.dtype, device=layout.device)
                for _ in range(layout.layers)
            ]
