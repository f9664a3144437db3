"""Perplexity, and how sure its change is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument

# Neighbouring tokens are hard or easy together; blocks of this many are nearly independent.
_BLOCK = 32
_MOST_BLOCKS = 32


@dataclass(frozen=True)
class Change:
    """exp(mean difference of losses) - 1, with a confidence interval; 0.05 is 5 % more.

    The interval is Student's t over the means of ``blocks`` consecutive stretches of the text, so
    it holds although the losses of neighbours depend on each other.
    """

    relative: float
    low: float
    high: float
    confidence: float
    blocks: int


def perplexity(losses: Tensor) -> float:
    """exp(mean loss)."""
    return math.exp(float(losses.double().mean()))


def paired_change(losses: Tensor, baseline: Tensor, *, confidence: float = 0.95) -> Change:
    """How much higher the perplexity is than the baseline's, over the same tokens.

    losses, baseline: nats per token, (N,) each. Only the differences count, token by token, so
    what makes a text hard for both drops out. Raises InvalidArgument for other shapes, and for
    fewer than two blocks of tokens.
    """
    if losses.shape != baseline.shape or losses.dim() != 1:
        raise InvalidArgument(
            f"losses {tuple(losses.shape)} and baseline {tuple(baseline.shape)} are to be of the "
            "same tokens, one row each"
        )
    difference = losses.double() - baseline.double()
    blocks = min(len(difference) // _BLOCK, _MOST_BLOCKS)
    if blocks < 2:
        raise InvalidArgument(
            f"{len(difference)} losses are too few for an interval: at least {2 * _BLOCK}"
        )
    means = torch.stack([part.mean() for part in difference.tensor_split(blocks)])
    mean = float(difference.mean())
    half = student(confidence, blocks - 1) * float(means.std()) / math.sqrt(blocks)
    low, centre, high = (math.expm1(x) for x in (mean - half, mean, mean + half))
    return Change(centre, low, high, confidence, blocks)


def student(confidence: float, freedom: int) -> float:
    """t with P(|T| ≤ t) = confidence for Student's T with ``freedom`` degrees of freedom.

    Exact for one and two degrees; then the expansion around the normal quantile (Abramowitz and
    Stegun 1964, 26.7.5), within 1 % at 95 %.
    """
    if freedom == 1:
        return math.tan(math.pi * confidence / 2)
    if freedom == 2:
        return confidence * math.sqrt(2 / (1 - confidence**2))
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return math.fsum(term / float(freedom) ** power for power, term in enumerate(terms))
