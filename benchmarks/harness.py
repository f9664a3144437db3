"""Alternating measurements: every contender once per round, in a new order each round."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter


@dataclass(frozen=True)
class Times:
    """Seconds of one contender, one for each round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def spread(self) -> tuple[float, float]:
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
    """Measures work as it stands."""
    return prepared(lambda: work)


def prepared(prepare: Callable[[], Callable[[], object]]) -> Callable[[], float]:
    """Measures only what `prepare` returns; the preparation is done anew for each measurement."""

    def measure() -> float:
        work = prepare()
        start = perf_counter()
        work()
        return perf_counter() - start

    return measure


def alternate(
    cases: Mapping[str, Callable[[], float]], *, rounds: int, label: str, warmups: int = 1
) -> dict[str, Times]:
    """Seconds of each case: after the warm-up rounds, `rounds` rounds, starting at another case."""
    names, kept = list(cases), {name: [0.0] * rounds for name in cases}
    for turn in range(-warmups, rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            gc.collect()
            seconds = cases[name]()
            if turn >= 0:
                kept[name][turn] = seconds
            stage = f"round {turn + 1}/{rounds}" if turn >= 0 else "warm-up"
            say(f"{label}: {stage}: {name}: {seconds:.4g} s")
    return {name: Times(tuple(seconds)) for name, seconds in kept.items()}


def say(text: str) -> None:
    """Progress, on the error stream."""
    print(text, file=sys.stderr, flush=True)


def repeated_median(measure: Callable[[], float], count: int) -> float:
    """The median of `count` measurements."""
    return median(measure() for _ in range(count))


def cells(values: Sequence[object]) -> list[str]:
    """A table's row: numbers to three significant digits, None as nothing."""
    return [cell(value) for value in values]


def cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
