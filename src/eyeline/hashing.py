"""Numbers that look random but depend on nothing except what they are asked for."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

# Numbers that look random but depend on nothing except what they are asked for.
#
# A counter-based generator: a number is a hash of its place, so it does not matter in which order
# numbers are drawn, on which device, or how many were drawn before.

# splitmix64: the golden-ratio step and the two multipliers of its mixing, as signed integers.
_STEP, _FIRST, _SECOND = (
    x - (1 << 64) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def absorb(state: Tensor, value: Tensor | int) -> Tensor:
    """A new state (int64) that depends on the old one and on a value: mix((state ^ value) + step).

    Steele, Lea & Flood 2014, "Fast Splittable Pseudorandom Number Generators" (splitmix64).
    Multiplication wraps around, on every device alike.
    """
    mixed = (state ^ value) + _STEP
    mixed = (mixed ^ _shifted(mixed, 30)) * _FIRST
    mixed = (mixed ^ _shifted(mixed, 27)) * _SECOND
    return mixed ^ _shifted(mixed, 31)


def below(state: Tensor, end: int) -> Tensor:
    """A whole number in 0 … end - 1, each as likely as the others up to end / 2^63."""
    return _shifted(state, 1) % end


def seeded(*values: int) -> int:
    """The state that some numbers lead to, as a plain integer."""
    state = torch.zeros((), dtype=torch.int64, device="cpu")
    for value in values:
        state = absorb(state, value)
    return int(state)


def sample(state: Tensor, count: int, population: int) -> list[Tensor]:
    """``count`` distinct numbers below ``population`` for each state, all sets as likely.

    Floyd's method: for t = population - count … population - 1 draw x <= t, and take t if x was
    drawn before. Returns ``count`` tensors of the shape of ``state``; count <= population.
    """
    drawn: list[Tensor] = []
    for step in range(count):
        last = population - count + step
        x = below(absorb(state, step), last + 1)
        taken = torch.zeros_like(x, dtype=torch.bool)
        for earlier in drawn:
            taken = taken | (x == earlier)
        drawn.append(torch.where(taken, last, x))
    return drawn


def _shifted(x: Tensor, by: int) -> Tensor:
    """x >> by without the sign."""
    return (x >> by) & ((1 << (64 - by)) - 1)


# Chance as a function: the same numbers from the same seed and place, in whatever order asked.
#
# Nothing that is drawn depends on what was drawn before, so a run that goes on from its step 1,000
# draws what an unbroken run draws there, and no generator's state has to be kept.


def mixed(seed: int, *place: int | str) -> int:
    """A number from 0 to 2^63 - 1 that depends on the seed and on every part of the place."""
    text = "/".join(str(part) for part in (seed, *place))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *place: int | str) -> torch.Generator:
    """torch's generator, seeded for a place."""
    return torch.Generator().manual_seed(mixed(seed, *place))
