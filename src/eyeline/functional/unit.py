"""Vectors brought to length 1."""

from __future__ import annotations

import torch
from torch import Tensor


def unit(x: Tensor) -> Tensor:
    """x / |x| along the last dimension; 0 stays 0, without a gradient."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    length: Tensor = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    return (wide / length.masked_fill(length == 0.0, 1.0)).to(x.dtype)
