"""A curve's table for some distances, checked: one row for all heads, or one for each."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument


def tabulate(
    curve: Callable[[Tensor], Tensor],
    distances: Tensor,
    heads: int,
    dtype: torch.dtype,
    vector: tuple[int, ...] | None,
) -> Tensor:
    """What the curve gives for int64 distances (D,): (1 or heads, D) or (1 or heads, D, E).

    vector: what must come after (heads, D), () or (E,); None for anything.
    """
    found = curve(distances)
    if not isinstance(found, Tensor):
        raise InvalidArgument(f"a curve gave {found!r}, not a tensor")
    rows, *rest = found.shape if found.dim() > 1 else (0,)
    fits = vector is None or tuple(rest[1:]) == vector
    if rows not in (1, heads) or rest[0] != distances.shape[0] or not fits:
        wanted = (distances.shape[0], *(vector if vector is not None else ()))
        raise InvalidArgument(
            f"a curve gave {tuple(found.shape)} for {len(distances)} distances and {heads} query "
            f"heads: it must be {(1, *wanted)} or {(heads, *wanted)}"
        )
    return found.to(dtype)


def widened(x: Tensor) -> Tensor:
    """x in float32 at least: many pairs read one entry, whose gradient is a sum over them all."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
