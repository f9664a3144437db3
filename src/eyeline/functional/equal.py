"""Whether two tensors hold the same numbers."""

from __future__ import annotations

import torch
from torch import Tensor


def equal(x: Tensor, y: Tensor) -> bool:
    """Whether shapes and numbers are equal; NaN equals NaN."""
    if x.data_ptr() == y.data_ptr() and x.stride() == y.stride() and x.shape == y.shape:
        return True
    return torch.equal(x, y) or torch.equal(x.nan_to_num(), y.nan_to_num())
