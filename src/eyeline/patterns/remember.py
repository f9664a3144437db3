"""Remember what was derived from a pattern, but not what holds a user's tensors alive."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Generic, TypeVar, final

from eyeline.errors import InvalidArgument
from eyeline.patterns.base import Pattern

T = TypeVar("T")


@final
class Remembered(Generic[T]):
    """A function of a pattern and more, remembered by the whole arguments.

    Bound patterns carry tensors or callables that may be made anew for each call. Nothing is
    remembered of them, so that they can be freed.
    """

    def __init__(self, function: Callable[..., T], maxsize: int) -> None:
        self._function = function
        self._cached = lru_cache(maxsize)(function)
        self.cache_clear = self._cached.cache_clear

    def __call__(self, pattern: Pattern, *rest: Any) -> T:
        if pattern.bound:
            return self._function(pattern, *rest)
        try:
            hash(pattern)
        except TypeError as error:
            raise InvalidArgument(
                f"{type(pattern).__name__} cannot be hashed ({error}): a pattern is a frozen "
                "dataclass whose fields are hashable, or names itself in ``bound``"
            ) from None
        return self._cached(pattern, *rest)


def remember(maxsize: int) -> Callable[[Callable[..., T]], Remembered[T]]:
    """A decorator: keep the last ``maxsize`` results."""
    return lambda function: Remembered(function, maxsize)
