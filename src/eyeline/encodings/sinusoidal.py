"""Sinusoidal encoding: a position as the hands of clocks that turn at different speeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from eyeline.encodings.checks import check_number, check_size, check_whole_numbers


@final
@dataclass(frozen=True)
class Sinusoidal:
    """p[i, 2j] = sin(i / base^(2j / width)), p[i, 2j + 1] = cos(i / base^(2j / width)).

    p[i + d] is p[i] turned by angles that depend on d alone (``rotation``). There is an answer for
    every position; whether a model can use one that it was not trained on is another question.
    Vaswani et al. 2017, "Attention Is All You Need".

    Raises InvalidArgument for a width that is odd or below 2, and a base that is not above 0. An
    odd width would leave one sine without its cosine, which cannot be turned.
    """

    width: int
    base: float = 10000.0

    def __post_init__(self) -> None:
        check_size("sinusoidal width", self.width, even=True)
        check_number("sinusoidal base", self.base)

    def table(self, positions: Tensor, *, dtype: torch.dtype) -> Tensor:
        """p of positions (…), int64, as (…, width). Nobody (-1) gets 0: nothing is added there.

        Angles are computed in float64, then rounded to dtype.
        """
        check_whole_numbers("positions", positions)
        angles = positions.unsqueeze(-1) * self._speeds(positions.device)
        values = torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)
        return values.masked_fill_((positions < 0).unsqueeze(-1), 0.0).to(dtype)

    def rotation(self, offset: int) -> Tensor:
        """R with p[i + offset] = R p[i] for every i: float64 (width, width), orthogonal.

        Its blocks are ((cos a, sin a), (-sin a, cos a)) with a = offset / base^(2j / width).
        """
        angles = offset * self._speeds(torch.device("cpu"))
        cos, sin = angles.cos(), angles.sin()
        blocks = torch.stack((cos, sin, -sin, cos), -1).view(-1, 2, 2)
        matrix: Tensor = torch.block_diag(*blocks)
        return matrix

    def _speeds(self, device: torch.device) -> Tensor:
        pairs = torch.arange(0, self.width, 2, dtype=torch.float64, device=device)
        return torch.pow(self.base, -pairs / self.width)
