"""Norms that torch lacks, or has in many small steps."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


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
