"""Patterns that carry a user's own tensor or callable."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument
from eyeline.patterns.base import Bounds, MaskMod, Pattern, from_tests
from eyeline.tokens import NOBODY, Points

# A mask written out as a tensor.

_CELL = 32


@final
class Explicit(Pattern):
    """allows(i, j) = mask[i, j]: True means may look, as in torch's SDPA.

    mask: bool, (Q, K) or (B, H, Q, K); B and H may be 1, and Q may be 1: one row for all queries.
    Rows and columns are positions. A mask with fewer rows than columns holds the *last* rows, as
    omitted tokens mean: row i is the query at position i + K - Q.

    A bound pattern: it hashes by identity and prints as ``explicit(#0)``. Do not change the
    tensor afterwards. Raises InvalidArgument for another dtype or rank.
    """

    compares_positions = False

    def __init__(self, mask: Tensor) -> None:
        if not isinstance(mask, Tensor):
            raise InvalidArgument(f"mask is a {type(mask).__name__}: explicit needs a bool tensor")
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
            raise InvalidArgument(f"mask {tuple(mask.shape)}: its shape is (Q, K) or (B, H, Q, K)")
        self.mask = mask[0, 0] if mask.dim() == 4 and mask.shape[:2] == (1, 1) else mask
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

    def check_call(self, batch: int, heads: int) -> None:
        made_for = tuple(self.mask.shape[:2]) if self.mask.dim() == 4 else (1, 1)
        if made_for[0] not in (1, batch) or made_for[1] not in (1, heads):
            raise InvalidArgument(
                f"mask {tuple(self.mask.shape)} is for {made_for[0]} batch rows and {made_for[1]} "
                f"heads; the call has {batch} and {heads}"
            )

    def allows(self, q: Points, k: Points) -> Tensor:
        rows, columns = self.mask.shape[-2:]
        column = self._index(k.position, 0, columns, "key")
        if rows == 1:
            row = torch.zeros_like(q.position)
        else:
            row = self._index(q.position, self._shift, rows, "query")
        return self.mask.to(row.device)[row, column]

    def _index(self, position: Tensor, first: int, size: int, side: str) -> Tensor:
        real = position[position != NOBODY]
        outside = real[(real < first) | (real >= first + size)]
        if outside.numel():
            raise InvalidArgument(
                f"mask {tuple(self.mask.shape[-2:])} holds the {side} positions {first} to "
                f"{first + size - 1}; a {side} stands at {int(outside[0])}"
            )
        return (position - first).clamp(min=0)  # nobody reads some entry, and is taken out

    def verdict(self, q: Bounds, k: Bounds) -> Tensor:
        if self.mask.dim() == 4:
            return super().verdict(q, k)  # differs per batch row or head
        rows, columns = self.mask.shape[-2:]
        if rows == 1:
            q = Bounds(torch.zeros_like(q.min), torch.zeros_like(q.max), *q[2:])
        shift = self._shift if rows > 1 else 0
        low_q = ((q.min - shift).clamp(0, rows)) // _CELL
        high_q = (q.max - shift).clamp(-1, rows - 1) // _CELL + 1
        low_k, high_k = k.min.clamp(0, columns) // _CELL, k.max.clamp(-1, columns - 1) // _CELL + 1
        high_q, high_k = torch.maximum(low_q, high_q), torch.maximum(low_k, high_k)
        filled, complete = self._sums(low_q.device)
        area = (high_q - low_q) * (high_k - low_k)
        beyond = (q.max - shift >= rows) | (k.max >= columns)

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

    def mask_mod(self) -> MaskMod:
        mask = self.mask if self.mask.dim() == 4 else self.mask[None, None]
        batches, heads, rows, _ = mask.shape
        shift = self._shift if rows > 1 else 0

        def mask_mod(b: Any, h: Any, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            row = q_idx - shift if rows > 1 else torch.zeros_like(q_idx)
            return mask[b if batches > 1 else 0, h if heads > 1 else 0, row, kv_idx]

        return mask_mod

    def arguments(self) -> dict[str, Any]:
        return {}


# A rule given as a callable, the way FlexAttention takes it.


@final
class Predicate(Pattern):
    """allows(i, j) = mask_mod(batch, head, i, j), FlexAttention's signature; i, j are positions.

    mask_mod is called with int64 tensors that broadcast, (L, 1) and (1, S), and returns a bool
    tensor that broadcasts to (L, S). Nothing is known of it, so every tile is visited and its
    mask made when it is used: time grows with L·S, memory does not.

    per_batch, per_head: say False where the rule does not depend on them; it is then asked once
    for all. A bound pattern: it hashes by identity and prints as ``predicate(#0)``.
    """

    def __init__(self, mask_mod: MaskMod, *, per_batch: bool = True, per_head: bool = True) -> None:
        if not callable(mask_mod):
            raise InvalidArgument(f"mask_mod must be callable, got {type(mask_mod).__name__}")
        self.callable = mask_mod
        self.per_batch, self.per_head = per_batch, per_head
        self._place: tuple[int, int] | None = None

    @property
    def bound(self) -> tuple[Pattern, ...]:
        return (self,)

    @property
    def varies_by(self) -> frozenset[str]:
        flags = {"batch": self.per_batch, "head": self.per_head}
        return frozenset(name for name, varies in flags.items() if varies)

    def at(self, batch: int, head: int) -> Pattern:
        placed = Predicate(self.callable, per_batch=False, per_head=False)
        own = self._place if self._place is not None else (0, 0)
        placed._place = (batch if self.per_batch else own[0], head if self.per_head else own[1])
        return placed

    def allows(self, q: Points, k: Points) -> Tensor:
        place = self._place if self._place is not None else (0, 0)
        batch, head = (torch.tensor(index, device=q.position.device) for index in place)
        shape = torch.broadcast_shapes(q.position.shape, k.position.shape)
        allowed = self.callable(batch, head, q.position, k.position)
        if not isinstance(allowed, Tensor) or allowed.dtype != torch.bool:
            raise InvalidArgument(
                f"mask_mod returned {getattr(allowed, 'dtype', type(allowed).__name__)}: "
                "it must return a bool tensor"
            )
        try:
            return allowed.expand(shape)
        except RuntimeError as error:
            raise InvalidArgument(
                f"mask_mod returned shape {tuple(allowed.shape)} for queries "
                f"{tuple(q.position.shape)} and keys {tuple(k.position.shape)}: "
                f"it must broadcast to {tuple(shape)}"
            ) from error

    def mask_mod(self) -> MaskMod:
        if self._place is None:
            return self.callable
        batch, head = self._place
        return lambda b, h, q_idx, kv_idx: self.callable(batch, head, q_idx, kv_idx)

    def arguments(self) -> dict[str, Any]:
        return {}
