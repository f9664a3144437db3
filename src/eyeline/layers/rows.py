"""Work on each token alone, done some tokens at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# What lies between two products of this many rows still fits the processor's cache.
_ROWS = 1024


def by_rows(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """function(x) for a function that maps each row of x (…, width) without the others.

    The memory between its steps is that of 1,024 rows, and a long text is read faster for it.
    """
    rows = x.flatten(0, -2)
    if rows.shape[0] <= _ROWS:
        return function(x)
    out = torch.cat([function(part) for part in rows.split(_ROWS)])
    return out.view(*x.shape[:-1], -1)
