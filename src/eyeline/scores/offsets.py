"""One trained number for each offset: added to the score, or multiplying the weight."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from eyeline.encodings.checks import check_size
from eyeline.scores.base import ScoreMod, Step
from eyeline.scores.bias import Bias
from eyeline.scores.checks import check_heads
from eyeline.scores.factor import Factor
from eyeline.scores.tabulate import widened


class _PerOffset(nn.Module, ScoreMod):
    """weight[clip(d) + max_distance, h] for the distances d, clipped on both sides."""

    start: float

    def __init__(self, num_heads: int, max_distance: int) -> None:
        super().__init__()
        name = type(self).__name__
        check_size(f"{name} num_heads", num_heads)
        check_size(f"{name} max_distance", max_distance)
        self.weight = nn.Parameter(torch.empty(2 * max_distance + 1, num_heads))
        self.reset_parameters()

    @property
    def num_heads(self) -> int:
        """The number of query heads."""
        return self.weight.shape[1]

    @property
    def max_distance(self) -> int:
        """The distance from which on all have the same number."""
        return self.weight.shape[0] // 2

    def reset_parameters(self) -> None:
        """Sets all numbers to the one that changes nothing."""
        nn.init.constant_(self.weight, self.start)

    def forward(self, distances: Tensor) -> Tensor:
        """The number of each distance, (num_heads, D), for int64 distances (D,)."""
        most = self.max_distance
        return widened(self.weight)[distances.clamp(-most, most) + most].T

    def check(self, heads: int, width: int, value_width: int | None) -> None:
        check_heads(type(self).__name__, self.num_heads, heads)

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, max_distance={self.max_distance}"


@final
class OffsetBias(_PerOffset):
    """score[h, i, j] + weight[clip(j - i) + m, h], with m = max_distance and clip to -m … m.

    weight: (2m + 1, num_heads), trained: the number π of each offset between key and query, in
    each head. It starts as 0, which adds nothing.

    Raises InvalidArgument for a head count or max_distance below 1.
    """

    start = 0.0

    def steps(self) -> tuple[Step, ...]:
        return (Bias(self, (-self.max_distance, self.max_distance)),)


@final
class OffsetFactor(_PerOffset):
    """weight[h, i, j] · factor[clip(j - i) + m, h]: after the softmax, so rows need not sum to 1.

    The trained factors have the layout of OffsetBias and its name, ``weight``. They start as 1,
    which changes nothing. They may become negative: nothing keeps them above 0.

    Raises InvalidArgument for a head count or max_distance below 1.
    """

    start = 1.0

    def steps(self) -> tuple[Step, ...]:
        return (Factor(self, (-self.max_distance, self.max_distance)),)
