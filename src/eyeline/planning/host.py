"""Plans and counts are integers in the memory of the CPU, whatever a user's default device is."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


def on_host(function: Callable[P, T]) -> Callable[P, T]:
    """A decorator: new tensors are made on the CPU, without the bookkeeping of gradients."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        with torch.inference_mode():
            if torch.get_default_device().type == "cpu":
                return function(*args, **kwargs)
            with torch.device("cpu"):
                return function(*args, **kwargs)

    return wrapped
