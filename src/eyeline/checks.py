"""Sizes, numbers and probabilities that are asked for, checked; and the types that sums need."""

from __future__ import annotations

import math
from typing import TypeGuard

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument
from eyeline.memory import traced
from eyeline.tokens import LARGEST


def check_size(name: str, value: object, *, least: int = 1, even: bool = False) -> None:
    """Raise InvalidArgument unless the value is a whole number from ``least``, and even if asked.

    An even number is from 2.
    """
    least = max(least, 2) if even else least
    if not _is_whole(value, least) or (even and value % 2):
        kind = "an even number" if even else "a whole number"
        raise InvalidArgument(f"{name}={value!r}: {kind} from {least}")


def check_sizes(**sizes: object) -> None:
    """Raise InvalidArgument unless each is a whole number from 1."""
    for name, size in sizes.items():
        check_size(name, size)


def check_whole(name: str, value: object, *, least: int) -> None:
    """Raise InvalidArgument unless ``least`` <= value < 2^60 is a whole number."""
    if not _is_whole(value, least) or value >= LARGEST:
        raise InvalidArgument(f"{name}={value!r}: a whole number from {least} to 2^60 - 1")


def _is_whole(value: object, least: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def probability(name: str, p: float) -> float:
    """p as a float. Raises InvalidArgument unless it is a number from 0 to below 1."""
    if isinstance(p, bool) or not isinstance(p, (int, float)) or not 0.0 <= p < 1.0:
        raise InvalidArgument(f"{name}={p!r}: a probability from 0 to below 1")
    return float(p)


def check_number(name: str, value: float, *, least: float = 0.0, equal: bool = False) -> None:
    """Raise InvalidArgument unless the value is finite and above ``least``, or equal to it."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not (least < value < math.inf or (equal and value == least)):
        raise InvalidArgument(
            f"{name}={value!r}: a number {'from' if equal else 'above'} {least:g}{' on' * equal}"
        )


def check_whole_numbers(name: str, values: Tensor) -> None:
    """Raise InvalidArgument unless the values are int64."""
    if values.dtype != torch.int64:
        raise InvalidArgument(f"{name} must be int64, got {values.dtype} {tuple(values.shape)}")


def check_below(name: str, values: Tensor, limit: int, *, least: int, remedy: str) -> None:
    """Raise InvalidArgument if a value is not one of least … limit - 1.

    Looks at values on a CPU only, and not while a graph is compiled: elsewhere torch's own
    assertion of an index out of range stops the program.
    """
    if values.device.type != "cpu" or traced() or not values.numel():
        return
    lowest, highest = (int(bound) for bound in values.aminmax())
    if lowest < least or highest >= limit:
        wrong = lowest if lowest < least else highest
        raise InvalidArgument(f"{name} {wrong}: they go from {least} to {limit - 1}; {remedy}")


def check_heads(name: str, made: int, found: int) -> None:
    """Raise InvalidArgument unless it was made for as many query heads as there are."""
    if made != found:
        raise InvalidArgument(f"{name} was made for {made} heads, the query has {found}")


def check_width(name: str, made: int, found: int) -> None:
    """Raise InvalidArgument unless its vectors are as wide as what they meet. name: which ones."""
    if made != found:
        raise InvalidArgument(f"{name} vectors are {made} wide, a head's are {found}")


def equal(x: Tensor, y: Tensor) -> bool:
    """Whether shapes and numbers are equal; NaN equals NaN."""
    if x.data_ptr() == y.data_ptr() and x.stride() == y.stride() and x.shape == y.shape:
        return True
    return torch.equal(x, y) or torch.equal(x.nan_to_num(), y.nan_to_num())


def wide_dtype(x: Tensor | torch.dtype) -> torch.dtype:
    """The type in which sums over x are kept: float32, or float64 for float64."""
    return torch.promote_types(x.dtype if isinstance(x, Tensor) else x, torch.float32)


def widened(x: Tensor) -> Tensor:
    """x in its ``wide_dtype``."""
    return x.to(wide_dtype(x))
