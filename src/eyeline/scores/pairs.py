"""All pairs of a call, as the definitions of steps see them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from eyeline.scores.tabulate import tabulate
from eyeline.tokens import Tokens


@final
@dataclass(frozen=True, eq=False)
class Pairs:
    """Every pair of a query and a key: query (B, H, L, E), and who stands in which slot."""

    query: Tensor
    scale: float
    q_tokens: Tokens
    k_tokens: Tokens

    @cached_property
    def _distances(self) -> tuple[Tensor, Tensor]:
        """The distances that occur, (U,), and for each pair which it is, (B or 1, L, S)."""
        q, k = self.q_tokens.positions, self.k_tokens.positions
        distance = (k.unsqueeze(-2) - q.unsqueeze(-1)).to(self.query.device)
        found, which = distance.unique(return_inverse=True)
        return found, which if which.dim() == 3 else which[None]

    def look_up(self, curve: Callable[[Tensor], Tensor]) -> Tensor:
        """A curve's table (G, U) read by the pairs: (B or 1, G, L, S)."""
        distances, which = self._distances
        return self._table(curve, distances, ())[:, which].transpose(0, 1)

    def table(
        self, curve: Callable[[Tensor], Tensor], width: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """A curve's table of vectors (G, U, E), and the entry of each pair, (B or 1, 1, L, S)."""
        distances, which = self._distances
        vector = None if width is None else (width,)
        return self._table(curve, distances, vector), which[:, None]

    def _table(
        self, curve: Callable[[Tensor], Tensor], distances: Tensor, vector: tuple[int, ...] | None
    ) -> Tensor:
        wide = torch.promote_types(self.query.dtype, torch.float32)
        return tabulate(curve, distances, self.query.shape[1], wide, vector)
