"""Runs of equal neighbours in sorted arrays."""

from __future__ import annotations

import torch
from torch import Tensor


def spans(begins: Tensor) -> tuple[Tensor, Tensor]:
    """First and last index of each span; ``begins`` is True where one begins, and at index 0."""
    first = begins.nonzero()[:, 0]
    return first, torch.nn.functional.pad(first, (0, 1), value=len(begins))[1:] - 1


def lexsort(*keys: Tensor) -> Tensor:
    """The order that sorts by the last key, ties by the one before it, and so on."""
    order = keys[0].argsort(stable=True)
    for key in keys[1:]:
        order = order[key[order].argsort(stable=True)]
    return order
