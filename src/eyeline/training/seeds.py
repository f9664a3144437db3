"""Chance as a function: the same numbers from the same seed and place, in whatever order asked.

Nothing that is drawn depends on what was drawn before, so a run that goes on from its step 1,000
draws what an unbroken run draws there, and no generator's state has to be kept.
"""

from __future__ import annotations

import hashlib

import torch


def mixed(seed: int, *place: int | str) -> int:
    """A number from 0 to 2^63 - 1 that depends on the seed and on every part of the place."""
    text = "/".join(str(part) for part in (seed, *place))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *place: int | str) -> torch.Generator:
    """torch's generator, seeded for a place."""
    return torch.Generator().manual_seed(mixed(seed, *place))
