"""Learned encoding: one trained vector for each position that there may be."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from eyeline.encodings.checks import check_below, check_size, check_whole_numbers


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
