"""Plans and counts are integers in the memory of the CPU, whatever a user's default device is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


def on_host(function: Callable[P, T]) -> Callable[P, T]:
    """A decorator: new tensors are made on the CPU, by one thread, without gradients.

    Planning is many short operations. To share one among threads gains little, and where other
    programs keep a processor busy, waiting for the slowest thread makes it thirty times as long.
    """

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        with _one_thread(), torch.inference_mode():
            if torch.get_default_device().type == "cpu":
                return function(*args, **kwargs)
            with torch.device("cpu"):
                return function(*args, **kwargs)

    return wrapped


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
