"""Steps that need no distance: softcap, dropout, a user's own callable."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument
from eyeline.hashing import absorb, seeded
from eyeline.scores.base import Block, Pairs, ScoreMod, ScoreStep, Table, WeightStep

# Softcap: scores are kept between two bounds, smoothly.


@final
@dataclass(frozen=True)
class Softcap(ScoreMod, ScoreStep):
    """limit · tanh(score / limit): scores stay between -limit and limit.

    Its derivative is 1 - (result / limit)². Gemma 2 (Riviere et al. 2024).

    Raises InvalidArgument for a limit that is not a finite number above 0.
    """

    limit: float
    needs_after = True

    def __post_init__(self) -> None:
        if not 0 < self.limit < math.inf:
            raise InvalidArgument(f"Softcap limit={self.limit!r}: a finite number above 0")

    def steps(self) -> tuple[ScoreStep, ...]:
        return (self,)

    def define(self, score: Tensor, pairs: Pairs) -> Tensor:
        return self.limit * (score / self.limit).tanh()

    def forward(self, score: Tensor, block: Block, table: Table | None) -> Tensor:
        return score.div_(self.limit).tanh_().mul_(self.limit)

    def backward(self, slope: Tensor, after: Tensor, block: Block, table: Table | None) -> Tensor:
        return slope * (1 - (after / self.limit).square_())


# Dropout: some weights are left out, the others are made larger. A function of seed and place.

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


# A change of the scores given as a callable, the way FlexAttention takes it.


@final
class Called(ScoreMod, ScoreStep):
    """score_mod(score, batch, head, i, j), FlexAttention's signature; i, j are positions.

    It is called with all scores at once, (B, H, L, S), and with int64 tensors that broadcast
    against them. Nothing is known of it but its results: it has no derivative of its own, so only
    kernels that keep all scores, or compile it, can honour it.
    """

    def __init__(self, score_mod: Callable[..., Any]) -> None:
        if not callable(score_mod) or isinstance(score_mod, type):
            raise InvalidArgument(f"score_mod must be callable, got {score_mod!r}")
        self.callable = score_mod

    def steps(self) -> tuple[ScoreStep, ...]:
        return (self,)

    def define(self, score: Tensor, pairs: Pairs) -> Tensor:
        batch, heads = (torch.arange(size, device=score.device) for size in score.shape[:2])
        q, k = (x.positions.to(score.device) for x in (pairs.q_tokens, pairs.k_tokens))
        i, j = (x if x.dim() == 2 else x[None] for x in (q, k))
        places = batch[:, None, None, None], heads[None, :, None, None]
        changed = self.callable(score, *places, i[:, None, :, None], j[:, None, None, :])
        if not isinstance(changed, Tensor) or changed.shape != score.shape:
            found = tuple(changed.shape) if isinstance(changed, Tensor) else repr(changed)
            raise InvalidArgument(
                f"score_mod returned {found}: for scores {tuple(score.shape)} it must return a "
                "tensor of the same shape"
            )
        return changed

    def forward(self, score: Tensor, block: Block, table: Table | None) -> Tensor:
        raise NotImplementedError("kernels that work by blocks refuse a callable")

    def backward(self, slope: Tensor, after: Tensor, block: Block, table: Table | None) -> Tensor:
        raise NotImplementedError("kernels that work by blocks refuse a callable")
