"""The small networks that score which block of keys goes where."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn

from eyeline.checks import wide_dtype
from eyeline.errors import InvalidArgument
from eyeline.mechanisms.routed.sorting import Sorting


@final
class SortPairs(nn.Module):
    """S_ij = (d_i A)·(e_j B)/√E: block i takes, block j is taken; per head, for any length.

    taking, giving: A and B, (num_kv_heads, E, E), drawn as nn.Linear draws its own.
    """

    def __init__(self, num_kv_heads: int, head_dim: int) -> None:
        super().__init__()
        shape = (num_kv_heads, head_dim, head_dim)
        self.taking, self.giving = (nn.Parameter(torch.empty(shape)) for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws A and B anew, uniform within 1/√E."""
        for weight in self.parameters():
            nn.init.uniform_(weight, -(weight.shape[1] ** -0.5), weight.shape[1] ** -0.5)

    def forward(self, taking: Tensor, giving: Tensor, numbers: Tensor) -> Tensor:
        """Descriptors d and e, (B, Hk, N, E), and the blocks' numbers (R, N), to (B, Hk, N, N)."""
        one, other = taking @ self.taking.to(taking.dtype), giving @ self.giving.to(giving.dtype)
        return one @ other.mT / math.sqrt(taking.shape[3])

    def products(self, blocks: int, pairs: int) -> int:
        """Multiplications of a head, for so many blocks and pairs of them."""
        width = self.taking.shape[1]
        return 2 * blocks * width**2 + pairs * width


@final
class SortTable(nn.Module):
    """S_ij = d_i · W[:, j]: block i says by its own descriptor which block number j it takes.

    weight: W, (num_kv_heads, E, blocks), drawn as nn.Linear draws its own: a column for each
    block there can be.
    """

    def __init__(self, num_kv_heads: int, head_dim: int, blocks: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_kv_heads, head_dim, blocks))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws W anew, uniform within 1/√E."""
        bound = self.weight.shape[1] ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, taking: Tensor, giving: Tensor, numbers: Tensor) -> Tensor:
        """Descriptors d, (B, Hk, N, E), and the blocks' numbers (R, N), to (B, Hk, N, N).

        Raises InvalidArgument for a number from ``blocks`` on.
        """
        blocks = self.weight.shape[2]
        last = int(numbers.max()) if numbers.numel() else 0
        if last >= blocks:
            raise InvalidArgument(
                f"a key stands in block {last}, and this sinkhorn has a table of {blocks} blocks: "
                'make it with more and train it, or use network="pairs", which knows no length'
            )
        found = taking @ self.weight.to(taking.dtype)
        shape = (found.shape[0], found.shape[1], found.shape[2], numbers.shape[1])
        return found.gather(3, numbers.clamp(min=0)[:, None, None].expand(shape))

    def products(self, blocks: int, pairs: int) -> int:
        """Multiplications of a head, for so many blocks."""
        return blocks * self.weight[0].numel()


def descriptors(keys: Tensor, work: Sorting, *, causal: bool) -> tuple[Tensor, Tensor]:
    """What describes a block that takes, and one that is taken: means of keys, (B, Hk, N, E).

    keys: (B, Hk, N, size, E), 0 where nobody is. The mean of a block's keys; where causal, a block
    that takes is described by the mean of all keys of its document up to its first, which all
    its queries know. Both are float32 or wider.
    """
    wide, real = wide_dtype(keys), work.k.real
    total, count = keys.sum(3, dtype=wide), real.sum(2)[:, None, :, None].to(wide)
    giving = total / count.clamp(min=1)
    if not causal:
        return giving, giving
    before = work.may[:, None].to(wide)
    taking = (before @ total + _first(keys, real).to(wide)) / (before @ count + 1)
    return taking, giving


def _first(keys: Tensor, real: Tensor) -> Tensor:
    """The first key of each block, (B, Hk, N, E)."""
    place = real.int().argmax(2)[:, None, :, None, None]
    shape = (*keys.shape[:3], 1, keys.shape[4])
    return keys.gather(3, place.expand(shape)).squeeze(3)
