"""Masks as numbers. On a CPU torch reads bytes five to twenty times as fast as it reads bools."""

from __future__ import annotations

import torch
from torch import Tensor


def barred(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where the mask is True, -inf where it is False: 1 - 1 / mask."""
    numbers = mask.view(torch.uint8).to(dtype).reciprocal_()
    return torch.sub(numbers.new_ones(()), numbers, out=numbers)


def sees_somebody(mask: Tensor) -> Tensor:
    """mask.any(-1)."""
    if not mask.shape[-1]:
        return mask.any(-1)
    return mask.view(torch.uint8).amax(-1).view(torch.bool)
