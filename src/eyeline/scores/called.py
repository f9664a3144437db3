"""A change of the scores given as a callable, the way FlexAttention takes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument
from eyeline.scores.base import ScoreMod, ScoreStep
from eyeline.scores.block import Block, Table
from eyeline.scores.pairs import Pairs


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
