"""Complex-order embedding: a word is a complex function of the position it stands at."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from eyeline.encodings.checks import check_below, check_size, check_whole_numbers


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
