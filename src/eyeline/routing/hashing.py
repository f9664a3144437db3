"""Hashing by random rotations: vectors that point the same way fall into the same bucket."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from eyeline.hashing import absorb, seeded

# Working memory of one piece of products, in bytes.
_BUDGET = 4 << 20
# Up to so many buckets one rotation has them all.
_ONE = 16

Factors = tuple[int | Tensor, ...]
"""The factors of a number of buckets: for all tokens, or for each its own, int64 (B or 1, S)."""


def factors(buckets: int) -> tuple[int, int]:
    """Two even numbers whose product is ``buckets``, as alike as can be; 1 for what is not there.

    (8, 8) for 64, (10, 1) for 10, (1, 1) for 1. An odd number above 1 has none.
    """
    if buckets <= _ONE or buckets % 4:
        return buckets, 1
    quarter = buckets // 4
    less = next(x for x in range(math.isqrt(quarter), 0, -1) if quarter % x == 0)
    return 2 * less, 2 * (quarter // less)


def factors_about(buckets: float) -> tuple[int, int]:
    """Even factors of about so many buckets, both about its root; (1, 1) for one or fewer."""
    if buckets <= 1.0:
        return 1, 1
    if buckets <= _ONE:
        return _even(buckets), 1
    less = _even(math.sqrt(buckets))
    return less, _even(buckets / less)


def hashed(x: Tensor, factors: Factors, *, rounds: int, seed: int) -> Tensor:
    """The bucket of each vector in each round: x (B, H, S, E) to int64 (B, H, rounds, S).

    A bucket is a number in mixed radix. Its digit for a factor b is argmax [xR; -xR], where R
    (E, b/2) is drawn from the normal distribution for each head, round and factor. b columns take
    E·b/2 multiplications, so two factors of √b take far fewer than one of b. Andoni et al. 2015;
    Kitaev et al. 2020.
    """
    batch, heads, length, width = x.shape
    bucket = torch.empty(batch, heads, rounds, length, dtype=torch.int64, device=x.device)
    half = [_half(factor) for factor in factors]
    turns = [rotations(seed, heads, rounds, n, most, width) for n, (_, most) in enumerate(half)]
    a_token = max(batch * heads * rounds * max((most for _, most in half), default=1) * 8, 1)
    step = max(_BUDGET // a_token, 1)
    for first in range(0, length, step):
        part = slice(first, first + step)
        piece, found = x[:, :, part].to(_wide(x)).mT, torch.zeros_like(bucket[..., part])
        for factor, (own, most), turn in zip(factors, half, turns, strict=True):
            if most:
                digit = _digit(piece, turn.to(piece), _of(own, part))
                found = found.mul_(_of(factor, part)).add_(digit)
        bucket[..., part] = found
    return bucket


@lru_cache(maxsize=64)
def rotations(seed: int, heads: int, rounds: int, number: int, columns: int, width: int) -> Tensor:
    """(heads, rounds, columns, width), float32: normal numbers, each a function of its own place.

    number: that of the factor. So a head, a round and a column have the same numbers however
    many others there are.
    """
    with torch.inference_mode(False):
        state = torch.tensor(seeded(seed, number), device="cpu")
        for count, dims in ((heads, 3), (rounds, 2), (columns, 1), (width, 0)):
            state = absorb(state, torch.arange(count, device="cpu").view(-1, *[1] * dims))
        # Box and Muller 1958. The 53 bits a float64 holds, and never 0.
        one, two = (((absorb(state, n) >> 11) & ((1 << 53) - 1)) + 0.5 for n in (0, 1))
        radius = (one.double() / 2**53).log().mul(-2).sqrt()
        return (radius * (two.double() / 2**53).mul(2 * math.pi).cos()).float()


def _digit(piece: Tensor, turn: Tensor, half: int | Tensor) -> Tensor:
    """piece (B, H, E, n), turn (H, rounds, columns, E) to (B, H, rounds, n)."""
    heads, rounds, columns, width = turn.shape
    turned = turn.view(heads, rounds * columns, width) @ piece
    turned = turned.view(len(piece), heads, rounds, columns, piece.shape[3])
    if isinstance(half, Tensor):  # (B, 1, 1, n): some use fewer columns
        column = torch.arange(columns, device=turned.device).view(-1, 1)
        turned.masked_fill_(column >= half.unsqueeze(3), 0.0)
    index = turned.abs().max(3, keepdim=True).indices  # argmax along such a dimension is slow
    negative = turned.gather(3, index).squeeze(3) < 0
    return index.squeeze(3) + negative * half


def _half(factor: int | Tensor) -> tuple[int | Tensor, int]:
    """Half of a factor, the columns that it takes, and the most of them."""
    half = factor // 2
    if isinstance(half, Tensor):
        return half, int(half.max()) if half.numel() else 0
    return half, half


def _of(x: int | Tensor, part: slice) -> int | Tensor:
    return x[:, None, None, part] if isinstance(x, Tensor) else x


def _wide(x: Tensor) -> torch.dtype:
    """float64 where there is one: a step of a text and the whole round products differently, and
    a bucket must not depend on that."""
    return torch.float32 if x.device.type == "mps" else torch.float64


def _even(x: float) -> int:
    return 2 * max(round(x / 2), 1)


def columns_of(factors: Sequence[int]) -> int:
    """How many columns are multiplied for the digits of one token in one round."""
    return sum(factor // 2 for factor in factors)
