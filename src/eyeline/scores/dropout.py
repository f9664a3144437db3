"""Dropout: some weights are left out, the others are made larger. A function of seed and place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from eyeline.patterns.hashing import absorb, seeded
from eyeline.scores.base import WeightStep
from eyeline.scores.block import Block, Table
from eyeline.scores.pairs import Pairs

# MurmurHash3's mixing of 32 bits (Appleby), as signed integers.
_FIRST, _SECOND = (x - (1 << 32) for x in (0x85EBCA6B, 0xC2B2AE35))


@final
@dataclass(frozen=True)
class Dropout(WeightStep):
    """weight[i, j] · m[i, j], where m is 0 with probability p, else 1 / (1 - p).

    m is a hash of (seed, batch row, head, slot i, slot j): every kernel drops the same weights,
    in whatever order and pieces it computes them, and so does its backward pass.
    Srivastava et al. 2014.
    """

    p: float
    seed: int

    def define(self, weight: Tensor, pairs: Pairs) -> Tensor:
        rows, heads, q, k = (torch.arange(size, device=weight.device) for size in weight.shape)
        return weight * self._kept(rows[:, None], heads, q, k, weight.dtype)

    def factor(self, block: Block, table: Table | None, dtype: torch.dtype) -> Tensor:
        device = block.query.device
        heads = torch.arange(block.heads, block.heads + block.query.shape[1], device=device)
        q, k = (x.slot.to(device)[:, None] for x in (block.q, block.k))
        row = torch.full((1, 1), block.row, device=device)
        return self._kept(row, heads, q, k, dtype)

    def _kept(self, row: Tensor, heads: Tensor, q: Tensor, k: Tensor, dtype: torch.dtype) -> Tensor:
        """0 or 1 / (1 - p): row (B, 1), heads (H,), q (…, L) and k (…, S) to (…, H, L, S)."""
        stream = absorb(absorb(torch.full_like(heads, seeded(self.seed)), row), heads)
        left = absorb(stream[..., None], q).to(torch.int32)
        right = absorb(torch.zeros_like(k), k).to(torch.int32)
        # Sums of two hashes: two pairs have the same one no more often than by chance.
        x = left[..., :, None] + right[..., None, :]
        x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF)).mul_(_FIRST)
        x.bitwise_xor_((x >> 13).bitwise_and_(0x7FFFF)).mul_(_SECOND)
        threshold = min(round(self.p * (1 << 32)), (1 << 32) - 1) - (1 << 31)
        return (x >= threshold).to(dtype).mul_(1 / (1 - self.p))
