"""Planning: time and memory at 16,384 and at 1,048,576 tokens."""

from __future__ import annotations

from collections.abc import Callable

from eyeline import Tokens, memory, parse, plan
from eyeline.measuring.timing import prepared

from .harness import alternate
from .memory import Probe, peak_beyond
from .report import Report
from .settings import Settings
from .texts import mixed_lengths

PATTERNS = {
    "window": "sliding_window(256)",
    "streaming": "streaming(256, 4)",
    "global columns": "window(left=128, right=128) | sinks(16)",
    "prefix": "prefix_lm(512)",
    "global rows": "window(left=128, right=128) | global(16)",
    "documents": "causal",
}
SHORT, LONG = 16_384, 1 << 20
# Milliseconds, and MiB, that a plan may take.
TIME_BARS = {SHORT: 5.0, LONG: 150.0}
MEMORY_BARS = {SHORT: None, LONG: 64.0}


def run(settings: Settings) -> None:
    lengths = (settings.size(SHORT, 2048), settings.size(LONG, 16_384))
    report = Report(
        "planning",
        "Planning a pattern for tokens that were not seen before",
        settings,
        ["pattern", "text", "tokens", "ms", "beyond MiB", "parts", "pairs computed"],
        {"tile": "chosen by the planner"},
    )
    for length, bar in zip(lengths, (SHORT, LONG), strict=True):
        _measure(report, length, TIME_BARS[bar], MEMORY_BARS[bar])
    report.notes += [
        "each plan is made for new tokens and no plan is remembered; the tokens are made before.",
        "beyond: peak resident size beyond that of the tokens, in a fresh process.",
    ]
    report.finish()


def _measure(report: Report, length: int, time_bar: float, memory_bar: float | None) -> None:
    works = {name: prepared(_planner(name, length)) for name in PATTERNS}
    rounds = report.settings.rounds * (1 if report.settings.quick else 3)
    times = alternate(works, rounds=rounds, label=f"planning {length:,}")
    report.keep(f"{length:,}", times)
    for name, text in PATTERNS.items():
        beyond = peak_beyond("planning", name, length=length, settings=report.settings) / 2**20
        milliseconds = times[name].median * 1e3
        made = _plan(name, _tokens(name, length))
        row = [name, text, length, milliseconds, beyond, len(made.parts), made.area]
        report.rows.append(row)
        report.most(f"{name} at {length:,}", milliseconds, "ms", time_bar)
        if memory_bar is not None:
            report.most(f"{name} at {length:,}: memory", beyond, "MiB", memory_bar)


def probe(case: str, length: int) -> Probe:
    """For the peak of memory: one plan in a process of its own."""

    def work(length: int) -> object:
        tokens = _tokens(case, length)
        return tokens, _plan(case, tokens)

    return Probe(lambda: work(512), lambda: _tokens(case, length), lambda: work(length))


def _planner(name: str, length: int) -> Callable[[], Callable[[], object]]:
    def prepare() -> Callable[[], object]:
        memory.clear()
        tokens = _tokens(name, length)
        return lambda: _plan(name, tokens)

    return prepare


def _plan(name: str, tokens: Tokens):  # type: ignore[no-untyped-def]
    return plan(parse(PATTERNS[name]), q_tokens=tokens, k_tokens=tokens)


def _tokens(name: str, length: int) -> Tokens:
    if name == "documents":
        return Tokens.packed(mixed_lengths(length, 2048))
    return Tokens.arange(0, length)
