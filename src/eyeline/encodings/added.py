"""Positions that are added to embeddings: sinusoidal, learned, complex-order."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

from eyeline.checks import check_below, check_number, check_size, check_whole_numbers

# What can be added to the vectors of tokens, to say where they stand.


@runtime_checkable
class Added(Protocol):
    """An absolute encoding: position i gives a vector p_i, and x_i + p_i takes the place of x_i.

    Where it is added (to all, or to what queries and keys are made of; before the first layer or
    in each) is the layer's to say. Sinusoidal and Learned are such.
    """

    @property
    def width(self) -> int:
        """The number of features of p_i."""
        ...

    def table(self, positions: Tensor, *, dtype: torch.dtype) -> Tensor:
        """p of int64 positions (…) as (…, width). Nobody (-1) gets 0: nothing is added there."""
        ...


# Sinusoidal encoding: a position as the hands of clocks that turn at different speeds.


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


# Learned encoding: one trained vector for each position that there may be.


@final
class Learned(nn.Module):
    """p[i] = weight[i], for positions 0 … length - 1; weight: (length, width), trained.

    There is no vector for a position that the table does not hold, and none is made up: asking
    for one is an error. Nobody (-1) gets 0 and gives no gradient, so that what is added to a real
    token is the same with and without padding. Gehring et al. 2017; BERT and GPT-2.

    The weights start as N(0, 0.02²). Raises InvalidArgument for a length or width below 1.
    """

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        check_size("learned length", length)
        check_size("learned width", width)
        self.weight = nn.Parameter(torch.empty(length, width))
        self.reset_parameters()

    @property
    def length(self) -> int:
        """The number of positions there are."""
        return self.weight.shape[0]

    @property
    def width(self) -> int:
        """The number of features of p[i]."""
        return self.weight.shape[1]

    def reset_parameters(self) -> None:
        """Draws the weights anew."""
        if not self.weight.is_meta:  # there normal_ imports a second's worth of modules
            nn.init.normal_(self.weight, std=0.02)

    def table(self, positions: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
        """p of positions (…), int64, as (…, width), in the weight's dtype if none is given.

        Raises InvalidArgument for a position past the table, naming both numbers: on the CPU. A
        GPU is not waited for; there torch's assertion of an index out of range stops the program.
        """
        check_whole_numbers("positions", positions)
        remedy = f"this table has {self.length}, make it longer or the text shorter"
        check_below("position", positions, self.length, least=-1, remedy=remedy)
        rows = functional.embedding(positions.clamp(min=0), self.weight)
        rows = rows.masked_fill((positions < 0).unsqueeze(-1), 0.0)
        return rows if dtype is None else rows.to(dtype)

    def forward(self, positions: Tensor) -> Tensor:
        return self.table(positions)

    def extra_repr(self) -> str:
        return f"length={self.length}, width={self.width}"


# Complex-order embedding: a word is a complex function of the position it stands at.


@final
class ComplexOrder(nn.Module):
    """f_j(pos) = r_j · e^{i(ω_j · pos + θ_j)}: word j at a position, as ``width`` complex numbers.

    Each word has its own amplitudes r, frequencies ω and phases θ: three trained tables of shape
    (vocabulary, width). A word's vector at any position follows from its vector at one:
    f(pos + d) = f(pos) · e^{iωd} (``turn``). It takes the place of a word embedding and of what
    would be added to it. Wang et al. 2020, "Encoding word order in complex embeddings".

    Called, it returns real numbers for real networks, (…, 2 · width): all real parts, then all
    imaginary parts. r starts as N(0, 1), θ as uniform in [0, 2π), and ω of feature k as
    10000^(-k / width) for every word, the speeds of Sinusoidal.

    Raises InvalidArgument for a vocabulary or width below 1.
    """

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        check_size("complex order vocabulary", vocabulary)
        check_size("complex order width", width)
        self.amplitude = nn.Parameter(torch.empty(vocabulary, width))
        self.frequency = nn.Parameter(torch.empty(vocabulary, width))
        self.phase = nn.Parameter(torch.empty(vocabulary, width))
        self.reset_parameters()

    @property
    def vocabulary(self) -> int:
        """The number of words."""
        return self.amplitude.shape[0]

    @property
    def width(self) -> int:
        """The number of complex numbers of a word: half the features of the output."""
        return self.amplitude.shape[1]

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draws amplitudes and phases anew, and sets the frequencies back."""
        nn.init.normal_(self.amplitude)
        nn.init.uniform_(self.phase, 0.0, 2 * math.pi)
        features = torch.arange(self.width, device=self.frequency.device)
        self.frequency.copy_(torch.pow(10000.0, -features / self.width).expand(self.vocabulary, -1))

    def parts(self, ids: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Real and imaginary parts of f, each (…, width), in the dtype of the tables.

        ids: int64 (…); positions: int64, broadcast against ids. Nobody (-1) gets 0. Angles are
        computed in float64. Raises InvalidArgument for an id outside the vocabulary (on the CPU;
        on a GPU torch's own assertion stops the program).
        """
        angle = self._angle(ids, positions) + functional.embedding(ids, self.phase)
        amplitude = functional.embedding(ids, self.amplitude)
        amplitude = amplitude.masked_fill((positions < 0).unsqueeze(-1), 0.0)
        dtype = amplitude.dtype
        return amplitude * angle.cos().to(dtype), amplitude * angle.sin().to(dtype)

    def turn(self, ids: Tensor, distance: Tensor) -> tuple[Tensor, Tensor]:
        """Real and imaginary parts of e^{iωd}, (…, width): f(pos + d) = f(pos) · e^{iωd}.

        distance: int64, broadcast against ids, may be negative.
        """
        angle, dtype = self._angle(ids, distance), self.frequency.dtype
        return angle.cos().to(dtype), angle.sin().to(dtype)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """(real parts, imaginary parts) side by side: (…, 2 · width)."""
        return torch.cat(self.parts(ids, positions), -1)

    def _angle(self, ids: Tensor, distance: Tensor) -> Tensor:
        check_whole_numbers("ids", ids)
        check_whole_numbers("positions", distance)
        remedy = f"the vocabulary has {self.vocabulary} words"
        check_below("id", ids, self.vocabulary, least=0, remedy=remedy)
        return functional.embedding(ids, self.frequency).double() * distance.unsqueeze(-1)

    def extra_repr(self) -> str:
        return f"vocabulary={self.vocabulary}, width={self.width}"
