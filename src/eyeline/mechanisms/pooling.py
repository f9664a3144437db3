"""One key for a group of neighbours: by a strided convolution, their mean, or their maximum."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn

from eyeline.mechanisms.places import Groups


@final
class GroupConv(nn.Module):
    """y_g = Σ_t x[g · factor + t] W_t + b, per head: a convolution whose kernel is its stride.

    weight: (num_kv_heads, factor, head_dim, head_dim), W_t in the middle; bias: (num_kv_heads,
    head_dim). Nobody counts as 0. Drawn as nn.Conv1d with groups=num_kv_heads draws its own.
    """

    def __init__(self, factor: int, num_kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_kv_heads, factor, head_dim, head_dim))
        self.bias = nn.Parameter(torch.empty(num_kv_heads, head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws weight and bias anew, uniform within 1/√(factor · head_dim)."""
        bound = 1 / math.sqrt(self.weight.shape[1] * self.weight.shape[2])
        for parameter in (self.weight, self.bias):
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, groups: Groups, x: Tensor) -> Tensor:
        """(B, Hk, S, E) to (B, Hk, G, E)."""
        taken, weight = groups.take(x).flatten(3), self.weight.flatten(1, 2).to(x.dtype)
        return torch.einsum("bhgi,hio->bhgo", taken, weight) + self.bias[:, None].to(x.dtype)


@final
class GroupMean(nn.Module):
    """y_g = the mean of those of the group who are there; 0 where nobody is."""

    def forward(self, groups: Groups, x: Tensor) -> Tensor:
        """(B, Hk, S, E) to (B, Hk, G, E)."""
        if groups.full:
            return groups.take(x).mean(3)
        # Sums of half types overflow where their mean does not.
        wide = torch.promote_types(x.dtype, torch.float32)
        total, count = groups.take(x).sum(3, dtype=wide), groups.real.sum(3).clamp(min=1)
        return (total / count).to(x.dtype)


@final
class GroupMax(nn.Module):
    """y_g = the largest number of those of the group who are there, for each feature; or 0."""

    def forward(self, groups: Groups, x: Tensor) -> Tensor:
        """(B, Hk, S, E) to (B, Hk, G, E)."""
        taken = groups.take(x)
        if groups.full:
            return taken.amax(3)
        largest = taken.masked_fill(~groups.real, -math.inf).amax(3)
        return largest.masked_fill(~groups.real.any(3), 0.0)
