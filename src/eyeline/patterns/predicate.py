"""A rule given as a callable, the way FlexAttention takes it."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument
from eyeline.patterns.base import MaskMod, Pattern
from eyeline.tokens import Points


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
