"""Times that can be compared: by turns, after a warm-up, the median of several."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from time import perf_counter
from typing import TypeVar, final

# How long work says how far it is.


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


Name = TypeVar("Name")


def by_turns(
    runs: Mapping[Name, Callable[[], object]], *, rounds: int = 5, progress: Progress = silent
) -> dict[Name, float]:
    """Median seconds of each run. Every round runs each once, so that a slow moment hits all.

    One round more comes first and is not counted: it makes plans and wakes threads.
    """
    seconds: dict[Name, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for number, (name, run) in enumerate(runs.items()):
            progress("timing", turn * len(runs) + number, (rounds + 1) * len(runs))
            start = perf_counter()
            run()
            if turn:
                seconds[name].append(perf_counter() - start)
    return {name: median(each) for name, each in seconds.items()}


def crossover(lengths: Sequence[int], speedups: Sequence[float]) -> float | None:
    """The length from which on the speedup is 1 or more, interpolated; None if it never is.

    lengths: ascending. speedups: at each of them, baseline time / own time. Between two lengths
    both are taken as straight lines in logarithms. The first length is returned if the speedup
    is at least 1 at every length: the crossover lies there or below.
    """
    behind = [place for place, speedup in enumerate(speedups) if speedup < 1]
    if not behind:
        return float(lengths[0])
    last = behind[-1]
    if last == len(lengths) - 1:
        return None
    low, high = math.log(speedups[last]), math.log(speedups[last + 1])
    start, end = math.log(lengths[last]), math.log(lengths[last + 1])
    return math.exp(start - low * (end - start) / (high - low))
