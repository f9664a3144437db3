"""Benchmarks by turns, told on the error stream, and the cells of their tables."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping, Sequence

from eyeline.measuring import timing
from eyeline.measuring.timing import Times


def alternate(
    cases: Mapping[str, Callable[[], float]], *, rounds: int, label: str, warmups: int = 1
) -> dict[str, Times]:
    """``timing.alternate``; what earlier cases left behind is collected before each."""

    def clean(case: Callable[[], float]) -> Callable[[], float]:
        def measure() -> float:
            gc.collect()
            return case()

        return measure

    def tell(name: str, turn: int, seconds: float) -> None:
        stage = f"round {turn + 1}/{rounds}" if turn >= 0 else "warm-up"
        say(f"{label}: {stage}: {name}: {seconds:.4g} s")

    cleaned = {name: clean(case) for name, case in cases.items()}
    return timing.alternate(cleaned, rounds=rounds, warmups=warmups, tell=tell)


def say(text: str) -> None:
    """Progress, on the error stream."""
    print(text, file=sys.stderr, flush=True)


def cells(values: Sequence[object]) -> list[str]:
    """A table's row: numbers to three significant digits, None as nothing."""
    return [cell(value) for value in values]


def cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
