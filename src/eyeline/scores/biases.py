"""One number for each distance: ALiBi's, T5's buckets, one for each offset."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor, nn

from eyeline.checks import check_heads, check_size, widened
from eyeline.errors import InvalidArgument
from eyeline.scores.base import Reach, ScoreMod, Step
from eyeline.scores.by_distance import Bias, Factor

# ALiBi: the further away a key stands, the more its score loses, in each head at its own rate.


@final
@dataclass(frozen=True)
class ALiBi(ScoreMod):
    """score[h, i, j] - slope[h] · |i - j|, with i and j the positions of query and key.

    The slopes are 2^(-8/H), 2^(-16/H), …, 2^-8 for a number H of heads that is a power of two.
    Else those of the next lower power come first, then every other one of the next higher power,
    from its first on. Other ``slopes`` may be given, one for each head. Nothing is trained.

    The products keep their scale, 1/√E. The paper's models look back only; where a pattern shows
    keys after the query, these lose as much as those before it.
    Press et al. 2022, "Train Short, Test Long".

    Raises InvalidArgument for a head count below 1, and for slopes that are not finite or are not
    as many as heads.
    """

    num_heads: int
    slopes: tuple[float, ...] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_size("ALiBi num_heads", self.num_heads)
        if self.slopes is None:
            return
        given = tuple(float(slope) for slope in self.slopes)
        if len(given) != self.num_heads or not all(map(math.isfinite, given)):
            raise InvalidArgument(
                f"ALiBi slopes={given}: {self.num_heads} finite numbers, one for each head"
            )
        object.__setattr__(self, "slopes", given)

    @property
    def per_head(self) -> tuple[float, ...]:
        """The slope of each head."""
        return self.slopes if self.slopes is not None else published_slopes(self.num_heads)

    def curve(self, distances: Tensor) -> Tensor:
        """-slope · |distance|: (H, D), float64."""
        slopes = torch.tensor(self.per_head, dtype=torch.float64, device=distances.device)
        return -slopes[:, None] * distances.abs()

    def steps(self) -> tuple[Step, ...]:
        return (Bias(self.curve),)

    def check(self, heads: int, width: int, value_width: int | None) -> None:
        check_heads("ALiBi", self.num_heads, heads)


def published_slopes(num_heads: int) -> tuple[float, ...]:
    """The slopes of the paper for so many heads."""
    lower = 1 << (num_heads.bit_length() - 1)
    every_other = _powers(2 * lower)[::2]
    return (*_powers(lower), *every_other[: num_heads - lower])


def _powers(count: int) -> tuple[float, ...]:
    """2^(-8h / count) for h = 1 … count."""
    return tuple(2.0 ** (-8 * h / count) for h in range(1, count + 1))


# T5Bias: a trained number for each bucket of distances; far distances share buckets.


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


# One trained number for each offset: added to the score, or multiplying the weight.


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
