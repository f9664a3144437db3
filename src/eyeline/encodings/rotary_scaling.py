"""Scalings of the rotary encoding: slower turns, so that a model can read past its training.

With base b and n pairs, pair j turns by f_j = b^(-j / n) per position. A model trained on L
positions has seen pair j turn L · f_j / 2π times. Each scaling gives every pair a new speed f'_j.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from eyeline.checks import check_number, check_size
from eyeline.errors import InvalidArgument


@dataclass(frozen=True)
class Scaling(ABC):
    """Frequencies into frequencies, and a factor on the scores. Give it to Rotary.

    factor: how many times longer than in training a text may be, from 1 on.
    """

    factor: float

    def __post_init__(self) -> None:
        check_number(f"{self._name} factor", self.factor, least=1.0, equal=True)

    @abstractmethod
    def scaled(self, frequencies: Tensor, base: float) -> Tensor:
        """f' of f_j = base^(-j / n), float64 (n,), in radians per position."""

    @property
    def magnitude(self) -> float:
        """Rotated queries and keys are multiplied by it, so scores by its square."""
        return 1.0

    @property
    def _name(self) -> str:
        return type(self).__name__


@final
@dataclass(frozen=True)
class Linear(Scaling):
    """f'_j = f_j / factor: all positions move closer together. Chen et al. 2023.

    Neighbours are then told apart less well, which is learned again by a little training.
    """

    def scaled(self, frequencies: Tensor, base: float) -> Tensor:
        return frequencies / self.factor


@final
@dataclass(frozen=True)
class NTK(Scaling):
    """f'_j = f_j · factor^(-j / (n - 1)): the fastest pair keeps its speed, the slowest is divided.

    The same as the base b · factor^(d / (d - 2)) in place of b, d = 2n. Known as "NTK-aware".

    Raises InvalidArgument when given to a Rotary of one pair, which would be both.
    """

    @staticmethod
    def dynamic(factor: float, *, length: int, trained_length: int) -> NTK:
        """NTK(factor · max(length / trained_length, 1) - factor + 1), known as "dynamic NTK".

        Up to trained_length nothing changes. Beyond it each length has speeds of its own, so keys
        that were rotated for one length are wrong in another: say the final length beforehand.
        """
        check_size("dynamic length", length)
        check_size("dynamic trained_length", trained_length)
        NTK(factor)
        return NTK(factor * max(length / trained_length, 1.0) - (factor - 1.0))

    def scaled(self, frequencies: Tensor, base: float) -> Tensor:
        pairs = len(frequencies)
        if pairs < 2:
            raise InvalidArgument(f"{self}: a rotary encoding of at least 2 pairs, not of {pairs}")
        exponents = torch.arange(pairs, dtype=torch.float64, device=frequencies.device)
        return frequencies * torch.pow(self.factor, -exponents / (pairs - 1))


@final
@dataclass(frozen=True)
class YaRN(Scaling):
    """f'_j = (1 - s_j) · f_j + s_j · f_j / factor, s_j = clip((j - low) / (high - low), 0, 1).

    low and high are the pairs (not whole numbers) that turn beta_fast and beta_slow times in
    original_length positions: j(r) = n · ln(original_length / 2πr) / ln b. Pairs up to low keep
    their speed, pairs from high on are slowed down by factor. Peng et al. 2023.

    truncate: low is rounded down and high up, as published. attention_factor: the magnitude, by
    which rotated queries and keys are multiplied; 0.1 · ln(factor) + 1 if None.

    Raises InvalidArgument unless beta_fast > beta_slow > 0, and for a Rotary whose base is not
    above 1.
    """

    original_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("YaRN original_length", self.original_length)
        check_number("YaRN beta_slow", self.beta_slow)
        check_number("YaRN beta_fast", self.beta_fast, least=self.beta_slow)
        if self.attention_factor is not None:
            check_number("YaRN attention_factor", self.attention_factor)

    @property
    def magnitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        return 0.1 * math.log(self.factor) + 1.0

    def scaled(self, frequencies: Tensor, base: float) -> Tensor:
        if not base > 1:
            raise InvalidArgument(f"{self}: a rotary base above 1, not {base}")
        pairs = len(frequencies)
        low, high = self._ramp(pairs, base)
        index = torch.arange(pairs, dtype=torch.float64, device=frequencies.device)
        slow = ((index - low) / (high - low)).clamp(0, 1)
        return (1 - slow) * frequencies + slow * frequencies / self.factor

    def _ramp(self, pairs: int, base: float) -> tuple[float, float]:
        """low < high. Kept inside the head as published: from 0 to its last *feature*."""

        def pair(turns: float) -> float:
            return pairs * math.log(self.original_length / (2 * math.pi * turns)) / math.log(base)

        low, high = pair(self.beta_fast), pair(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * pairs - 1)
        if low > high:
            raise InvalidArgument(
                f"{self}: all {pairs} pairs with base={base:g} turn less than beta_slow times, or "
                "more than beta_fast times: use Linear, or no scaling"
            )
        return low, high if low < high else low + 0.001


@final
@dataclass(frozen=True)
class Llama3(Scaling):
    """f'_j = s_j · f_j + (1 - s_j) · f_j / factor, s_j = clip((t_j - low) / (high - low), 0, 1).

    t_j = original_length · f_j / 2π is how often pair j turned in training; low and high are the
    two ``freq_factor``. Pairs that turned more than high times keep their speed, those that turned
    less than low times are slowed down by factor. Llama 3.1 (Grattafiori et al. 2024).

    Raises InvalidArgument unless high_freq_factor > low_freq_factor > 0.
    """

    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_length: int = 8192

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("Llama3 original_length", self.original_length)
        check_number("Llama3 low_freq_factor", self.low_freq_factor)
        check_number("Llama3 high_freq_factor", self.high_freq_factor, least=self.low_freq_factor)

    def scaled(self, frequencies: Tensor, base: float) -> Tensor:
        turns = self.original_length * frequencies / (2 * math.pi)
        span = self.high_freq_factor - self.low_freq_factor
        fast = ((turns - self.low_freq_factor) / span).clamp(0, 1)
        return fast * frequencies + (1 - fast) * frequencies / self.factor
