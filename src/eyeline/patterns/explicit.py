"""A mask written out as a tensor."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument
from eyeline.patterns.base import Pattern
from eyeline.patterns.bounds import Bounds
from eyeline.patterns.verdicts import from_tests
from eyeline.tokens import Points

_CELL = 32


@final
class Explicit(Pattern):
    """allows(i, j) = mask[i, j]: True means may look, as in torch's SDPA.

    mask: bool, (Q, K), or (H, Q, K) given as (1, H, Q, K), or (B, H, Q, K); B and H may be 1.
    Rows and columns are positions. A mask with fewer rows than columns holds the *last* rows, as
    omitted tokens mean: row i is the query at position i + K - Q.

    A bound pattern: it hashes by identity and prints as ``explicit(#0)``. Do not change the
    tensor afterwards. Raises InvalidArgument for another dtype or rank.
    """

    compares_positions = False

    def __init__(self, mask: Tensor) -> None:
        if mask.dtype != torch.bool:
            raise InvalidArgument(
                f"mask is {mask.dtype}: a pattern needs bool (True = may look); "
                "a float bias belongs in score_mod"
            )
        if mask.dim() == 3:
            raise InvalidArgument(
                f"a mask of rank 3, {tuple(mask.shape)}, can be read as (batch, query, key) or as "
                "(head, query, key): write mask[:, None] or mask[None]"
            )
        if mask.dim() not in (2, 4):
            raise InvalidArgument(
                f"mask {tuple(mask.shape)}: its shape is (Q, K) or (B, H, Q, K)"
            )
        self.mask = mask
        self._shift = max(mask.shape[-1] - mask.shape[-2], 0)
        self._cells: tuple[Tensor, Tensor] | None = None

    @property
    def bound(self) -> tuple[Pattern, ...]:
        return (self,)

    @property
    def varies_by(self) -> frozenset[str]:
        if self.mask.dim() == 2:
            return frozenset()
        sizes = {"batch": self.mask.shape[0], "head": self.mask.shape[1]}
        return frozenset(name for name, size in sizes.items() if size > 1)

    def at(self, batch: int, head: int) -> Pattern:
        if self.mask.dim() == 2:
            return self
        for name, index, size in zip(
            ("batch row", "head"), (batch, head), self.mask.shape[:2], strict=True
        ):
            if size > 1 and index >= size:
                raise InvalidArgument(f"mask {tuple(self.mask.shape)} has no {name} {index}")
        batches, heads = self.mask.shape[:2]
        return Explicit(self.mask[batch if batches > 1 else 0, head if heads > 1 else 0])

    def allows(self, q: Points, k: Points) -> Tensor:
        rows, columns = self.mask.shape[-2:]
        row = self._index(q.position - self._shift, rows, "query")
        column = self._index(k.position, columns, "key")
        return self.mask.to(row.device)[row, column]

    def _index(self, index: Tensor, size: int, side: str) -> Tensor:
        if index.numel() and int(index.max()) >= size:
            shape = tuple(self.mask.shape[-2:])
            raise InvalidArgument(
                f"mask {shape} has {size} {side} positions; a {side} stands at "
                f"{int(index.max()) + (self._shift if side == 'query' else 0)}"
            )
        # What lies below the mask is nobody (or before its first row), which kernels exclude.
        return index.clamp(min=0)

    def verdict(self, q: Bounds, k: Bounds) -> Tensor:
        rows, columns = self.mask.shape[-2:]
        low_q = ((q.min - self._shift).clamp(0, rows)) // _CELL
        high_q = (q.max - self._shift).clamp(-1, rows - 1) // _CELL + 1
        low_k, high_k = k.min.clamp(0, columns) // _CELL, k.max.clamp(-1, columns - 1) // _CELL + 1
        high_q, high_k = torch.maximum(low_q, high_q), torch.maximum(low_k, high_k)
        filled, complete = self._sums(low_q.device)
        area = (high_q - low_q) * (high_k - low_k)
        beyond = (q.max - self._shift >= rows) | (k.max >= columns)

        def count(sums: Tensor) -> Tensor:
            top, bottom = sums[low_q, high_k] - sums[low_q, low_k], sums[high_q, high_k]
            return bottom - sums[high_q, low_k] - top

        return from_tests(
            full=(count(complete) == area) & ~beyond, some=(count(filled) > 0) | beyond
        )

    def _sums(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Summed-area tables of cells that hold a True, and of cells that hold nothing else."""
        if self._cells is None:
            rows, columns = self.mask.shape[-2:]
            pad = (0, -columns % _CELL, 0, -rows % _CELL)
            shape = ((rows + pad[3]) // _CELL, _CELL, (columns + pad[1]) // _CELL, _CELL)
            some = torch.nn.functional.pad(self.mask, pad, value=False).view(shape)
            every = torch.nn.functional.pad(self.mask, pad, value=True).view(shape)
            tables = (some.any(3).any(1), every.all(3).all(1))
            self._cells = tuple(
                torch.nn.functional.pad(table.long().cumsum(0).cumsum(1), (1, 0, 1, 0))
                for table in tables
            )  # type: ignore[assignment]
        filled, complete = self._cells  # type: ignore[misc]
        return filled.to(device), complete.to(device)

    def arguments(self) -> dict[str, Any]:
        return {}
