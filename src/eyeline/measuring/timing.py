"""Times that can be compared: by turns, after a warm-up, the median of several."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
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


@dataclass(frozen=True)
class Times:
    """Seconds of one case, one for each round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def spread(self) -> tuple[float, float]:
        """The least and the most."""
        return min(self.seconds), max(self.seconds)


@dataclass(frozen=True)
class Ratio:
    """How many times the first takes of the second: medians, and the range over the rounds."""

    value: float
    low: float
    high: float


def ratio(first: Times, second: Times) -> Ratio:
    """median(first) / median(second); the range pairs what was measured in the same round."""
    paired = [a / b for a, b in zip(first.seconds, second.seconds, strict=True)]
    return Ratio(first.median / second.median, min(paired), max(paired))


def timed(work: Callable[[], object]) -> Callable[[], float]:
    """Measures work as it stands, in seconds."""
    return prepared(lambda: work)


def prepared(prepare: Callable[[], Callable[[], object]]) -> Callable[[], float]:
    """Measures only what ``prepare`` returns; the preparation is done anew for each measurement."""

    def measure() -> float:
        work = prepare()
        start = perf_counter()
        work()
        return perf_counter() - start

    return measure


def repeated_median(measure: Callable[[], float], times: int) -> float:
    """The median of so many measurements."""
    return median(measure() for _ in range(times))


def alternate(
    cases: Mapping[Name, Callable[[], float]],
    *,
    rounds: int,
    warmups: int = 1,
    tell: Callable[[Name, int, float], object] = lambda name, turn, seconds: None,
) -> dict[Name, Times]:
    """What each case measures. Every round asks each once, so that a slow moment hits all.

    It begins with another case each round, after ``warmups`` rounds that are not counted: they
    make plans and wake threads. tell: called after each, with its name, the round from 0 on
    (below 0: a warm-up), and what was measured.
    """
    names = list(cases)
    kept: dict[Name, list[float]] = {name: [] for name in names}
    for turn in range(-warmups, rounds):
        first = turn % max(len(names), 1)
        for name in names[first:] + names[:first]:
            seconds = cases[name]()
            if turn >= 0:
                kept[name].append(seconds)
            tell(name, turn, seconds)
    return {name: Times(tuple(seconds)) for name, seconds in kept.items()}


def by_turns(
    runs: Mapping[Name, Callable[[], object]], *, rounds: int = 5, progress: Progress = silent
) -> dict[Name, float]:
    """Median seconds of each run, by ``alternate``; progress counts the runs."""
    total, done = (rounds + 1) * len(runs), count()

    def told(name: Name, turn: int, seconds: float) -> None:
        progress("timing", next(done) + 1, total)

    progress("timing", 0, total)
    times = alternate({name: timed(run) for name, run in runs.items()}, rounds=rounds, tell=told)
    return {name: each.median for name, each in times.items()}


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
