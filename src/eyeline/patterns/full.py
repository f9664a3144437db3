"""Everybody may look at everybody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from eyeline.patterns.base import Pattern
from eyeline.patterns.bounds import FULL, Bounds
from eyeline.tokens import Points


@final
@dataclass(frozen=True)
class Full(Pattern):
    """allows(i, j) = True: dense attention."""

    compares_positions = False

    def allows(self, q: Points, k: Points) -> Tensor:
        return torch.ones_like(q.position + k.position, dtype=torch.bool)

    def verdict(self, q: Bounds, k: Bounds) -> Tensor:
        return torch.full_like(q.min + k.min, FULL, dtype=torch.uint8)
