"""What can be added to the vectors of tokens, to say where they stand."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


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
