"""Route: blocks of queries that look at blocks of keys. What every router makes of content."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument
from eyeline.tokens import NOBODY


@final
@dataclass(frozen=True, eq=False)
class Route:
    """Block n of a lane: its queries ``queries[n·rows : (n+1)·rows]`` look at its keys
    ``keys[n·step : n·step + columns]``.

    queries: int64 (B, H, A, N·rows), slots of the queries of each batch row and query head, in
    A lanes of N blocks; keys: int64 (B, H, A, (N-1)·step + columns), slots of the keys. -1 is
    nobody: an empty place. One slot may stand in many places; a pair that meets m times counts m
    times, as if its score were log m higher.
    q_labels, k_labels: integers of the same shapes; only places of equal label look at each other.
    band: bool (rows, columns), the pairs of every block that may look; None for all.

    All on one device. Raises InvalidArgument for shapes that do not fit together.
    """

    queries: Tensor
    keys: Tensor
    rows: int
    columns: int
    step: int
    q_labels: Tensor | None = None
    k_labels: Tensor | None = None
    band: Tensor | None = None

    def __post_init__(self) -> None:
        if self.rows < 1 or self.columns < 1 or self.step < 1:
            raise InvalidArgument(f"{self.sizes}: rows, columns and step are at least 1")
        if self.queries.dim() != 4 or self.keys.dim() != 4 or self.queries.shape[3] % self.rows:
            raise InvalidArgument(f"{self.sizes}: (B, H, A, blocks · rows) and (B, H, A, places)")
        reach = (self.blocks - 1) * self.step + self.columns if self.blocks else 0
        if self.queries.shape[:3] != self.keys.shape[:3] or self.keys.shape[3] != reach:
            raise InvalidArgument(f"{self.sizes}: as many lanes, and {reach} places of keys")
        labels = (self.q_labels, self.queries), (self.k_labels, self.keys)
        given = [label for label, _ in labels if label is not None]
        if len(given) == 1 or any(x is not None and x.shape != y.shape for x, y in labels):
            raise InvalidArgument(f"{self.sizes}: labels of both, of the shapes of the slots")
        if self.band is not None and self.band.shape != (self.rows, self.columns):
            raise InvalidArgument(f"{self.sizes}: a band of shape {tuple(self.band.shape)}")

    @property
    def lanes(self) -> int:
        """A: how many times a sequence may be ordered, as in the rounds of LSH."""
        return self.queries.shape[2]

    @property
    def blocks(self) -> int:
        """N: the blocks of a lane."""
        return self.queries.shape[3] // self.rows

    @property
    def pairs(self) -> int:
        """How many pairs of places are computed, allowed or not: all rows and heads together."""
        return self.queries.shape[:3].numel() * self.blocks * self.rows * self.columns

    @property
    def apart(self) -> bool:
        """Whether each place of a key is in one block."""
        return self.step == self.columns

    @property
    def sizes(self) -> str:
        """The shapes, for messages."""
        shapes = f"queries {tuple(self.queries.shape)}, keys {tuple(self.keys.shape)}"
        return f"route with {shapes}, rows={self.rows}, columns={self.columns}, step={self.step}"


def gathered(x: Tensor, slots: Tensor, empty: int) -> Tensor:
    """x[slots] of one dimension; ``empty`` where nobody is."""
    if not len(x):
        return torch.full_like(slots, empty, dtype=x.dtype)
    taken: Tensor = x[slots.clamp(min=0)]
    return taken.masked_fill(slots == NOBODY, empty)


def of_blocks(x: Tensor, size: int, step: int, first: int, count: int) -> Tensor:
    """Places (A, M, …) as blocks (A, count, size, …), from block ``first`` on: a view."""
    lanes, along = x.stride(0), x.stride(1)
    shape = (x.shape[0], count, size, *x.shape[2:])
    stride = (lanes, step * along, along, *x.stride()[2:])
    return torch.as_strided(x, shape, stride, x.storage_offset() + first * step * along)
