"""T5Bias: a trained number for each bucket of distances; far distances share buckets."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn

from eyeline.encodings.checks import check_size
from eyeline.errors import InvalidArgument
from eyeline.scores.base import Reach, ScoreMod, Step
from eyeline.scores.bias import Bias
from eyeline.scores.checks import check_heads
from eyeline.scores.tabulate import widened


@final
class T5Bias(nn.Module, ScoreMod):
    """score[h, i, j] + weight[bucket(j - i), h]; weight: (num_buckets, num_heads), trained.

    T5 multiplies its products by nothing: give ``attention(…, scale=1.0)`` too if weights come
    from a T5 checkpoint. The weight has the layout of its ``relative_attention_bias.weight``.

    bucket(d), for a key at distance d = j - i, with n buckets on its side: |d| below n/2; from
    there on n/2 + ⌊n/2 · log(2|d|/n) / log(2·max_distance/n)⌋, at most n - 1. bidirectional: keys
    after the query have the second half of the buckets to themselves (T5's encoder). Else all
    buckets are for keys before it, and those after it share bucket 0 with itself (its decoder).
    Raffel et al. 2020, "Exploring the Limits of Transfer Learning".

    The weights start as N(0, 0.02²). Raises InvalidArgument for a head count below 1, too few or,
    if bidirectional, an odd number of buckets, and a max_distance that buckets of one reach.
    """

    def __init__(
        self,
        num_heads: int,
        *,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool,
    ) -> None:
        super().__init__()
        check_size("T5Bias num_heads", num_heads)
        check_size("T5Bias num_buckets", num_buckets, even=bidirectional)
        check_size("T5Bias max_distance", max_distance)
        sides = 2 if bidirectional else 1
        if num_buckets < 2 * sides:
            raise InvalidArgument(f"T5Bias num_buckets={num_buckets}: at least {2 * sides}")
        exact = num_buckets // sides // 2
        if max_distance <= exact:
            raise InvalidArgument(
                f"T5Bias max_distance={max_distance}: more than {exact}, which {num_buckets} "
                "buckets tell apart one by one"
            )
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.weight = nn.Parameter(torch.empty(num_buckets, num_heads))
        self.reset_parameters()

    @property
    def num_buckets(self) -> int:
        """The number of trained numbers of a head."""
        return self.weight.shape[0]

    @property
    def num_heads(self) -> int:
        """The number of query heads."""
        return self.weight.shape[1]

    @property
    def reach(self) -> Reach:
        """The least and greatest distance that buckets tell apart."""
        return -self.max_distance, self.max_distance if self.bidirectional else 0

    def reset_parameters(self) -> None:
        """Draws the weights anew."""
        nn.init.normal_(self.weight, std=0.02)

    def buckets(self, distances: Tensor) -> Tensor:
        """The bucket of each distance, int64."""
        count = self.num_buckets
        if not self.bidirectional:
            return _bucket((-distances).clamp(min=0), count, self.max_distance)
        half = count // 2
        return _bucket(distances.abs(), half, self.max_distance) + half * (distances > 0)

    def forward(self, distances: Tensor) -> Tensor:
        """weight[bucket(distance), h], (num_heads, D), for int64 distances (D,)."""
        return widened(self.weight)[self.buckets(distances)].T

    def steps(self) -> tuple[Step, ...]:
        return (Bias(self, self.reach),)

    def check(self, heads: int, width: int, value_width: int | None) -> None:
        check_heads("T5Bias", self.num_heads, heads)

    def extra_repr(self) -> str:
        return (
            f"num_heads={self.num_heads}, num_buckets={self.num_buckets}, "
            f"max_distance={self.max_distance}, bidirectional={self.bidirectional}"
        )


def _bucket(away: Tensor, count: int, max_distance: int) -> Tensor:
    """The bucket, 0 … count - 1, of distances that are not below 0."""
    exact = count // 2
    # In float32, as the models were trained: it decides on which side of an edge a distance is.
    share = (away.clamp(min=exact).float() / exact).log() / math.log(max_distance / exact)
    far = exact + (share * (count - exact)).to(torch.int64)
    return torch.where(away < exact, away, far.clamp(max=count - 1))
