"""Norms that torch lacks, or has in many small steps."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from eyeline.layers.checks import check_sizes


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / √(mean(x²) + ε) ⊙ weight over the last dimension; float32 inside. Zhang 2019.

    x: (…, width); weight: (width,).

    torch's ``rms_norm`` is seven operators on a CPU, its ``layer_norm`` one. The vector (x, -x)
    has mean 0 and variance mean(x²), so the first half of its layer norm is the same thing, and
    for one row, as in writing, it takes half the time.
    """
    width = x.shape[-1]
    if x.numel() != width or x.device.type != "cpu":
        return functional.rms_norm(x, (width,), weight, eps)
    both = functional.layer_norm(torch.cat((x, -x), -1), (2 * width,), eps=eps)
    return both[..., :width] * weight


@final
class RMSNorm(nn.Module):
    """x / √(mean(x²) + ε) ⊙ weight over the last dimension, (…, width): ``rms_norm`` as a module.

    weight starts as 1. Zhang and Sennrich 2019. nn.LayerNorm is torch's own, and used as it is.
    """

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        check_sizes(width=width)
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps:g}"
