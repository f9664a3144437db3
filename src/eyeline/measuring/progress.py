"""How long work says how far it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import final

Progress = Callable[[str, int, int], None]
"""Called with what is being done, and how many steps of how many are done."""


def silent(what: str, done: int, total: int) -> None:
    """No progress bar."""


@final
class Stages:
    """Work in stages of known weight, told as one: ``total`` is the sum of the weights."""

    def __init__(self, total: int, progress: Progress) -> None:
        self._total, self._progress, self._done = total, progress, 0

    @contextmanager
    def stage(self, what: str, weight: int) -> Iterator[Progress]:
        """Around a stage; what it is given tells how far the stage itself is."""
        start = self._done

        def within(_: str, done: int, total: int) -> None:
            self._progress(what, start + weight * done // max(total, 1), self._total)

        self._progress(what, start, self._total)
        yield within
        self._done = start + weight
        self._progress(what, self._done, self._total)
