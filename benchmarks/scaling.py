"""Time against pairs and memory against length, to 262,144 tokens; and the time to plan."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import count

import torch
from torch import Tensor

from eyeline import (
    Causal,
    Pattern,
    Strided,
    Tokens,
    attention,
    memory,
    pairs,
    parse,
    plan,
    sliding_window,
)
from eyeline.measuring.timing import prepared
from eyeline.patterns import bigbird, longformer

from .harness import alternate
from .memory import Probe, peak_beyond
from .report import Figure, Report
from .settings import Settings

HEADS, DIM = 8, 64
LENGTHS = tuple(1 << power for power in range(13, 19))
MEMORY_LENGTHS = (16_384, 131_072)
PLANNED_LENGTH, PLANNING_BAR = 32_768, 20.0
LEAST, MOST = 0.9, 1.1

CASES: dict[str, Callable[[int], Pattern]] = {
    "sliding_window(256)": lambda length: sliding_window(256),
    "longformer(128, 16 global)": lambda length: longformer(128, range(16)),
    "bigbird(64, 3 random)": lambda length: bigbird(64, 3, 1),
    "causal & strided(√n)": lambda length: Causal() & Strided(round(math.sqrt(length))),
}
# A new seed each time: random blocks that were drawn once are remembered.
READY_MADE = (
    "sliding_window(256)",
    "streaming(256, 4)",
    "prefix_lm(512)",
    "longformer(128, 16)",
    "longformer(128, [0, 1, 1000, 20000])",
    "bigbird(64, 3, 1, seed={seed})",
    "sparse_transformer(128)",
    "sparse_transformer(128, kind=fixed, width=8)",
)


def run(settings: Settings) -> None:
    lengths = LENGTHS if not settings.quick else (1024, 2048, 4096)
    report = Report(
        "scaling",
        "Time against pairs, memory against length, forward and backward, float32; planning",
        settings,
        ["pattern", "tokens", "pairs a head", "ms", "ns a pair and head"],
        {"batch": 1, "heads": HEADS, "width": DIM},
    )
    _times(report, lengths)
    _memory(report, settings)
    _planning(report, settings.size(PLANNED_LENGTH, 4096))
    report.notes += [
        "exponent: the slope of log time against log pairs by least squares over all lengths.",
        "memory: the slope of log bytes beyond inputs, outputs and gradients against log length; "
        "each length in a fresh process, and less than 1 MiB counted as 1 MiB.",
        "planning: for tokens not seen before, no plan remembered; of bigbird, whose heads "
        "differ, the plan of one head.",
    ]
    report.finish()


def _times(report: Report, lengths: tuple[int, ...]) -> None:
    longest = _inputs(max(lengths))
    works = {
        f"{case} at {length:,}": prepared(_cut(case, length, longest))
        for length in lengths
        for case in CASES
    }
    times = alternate(works, rounds=report.settings.rounds, label="scaling")
    report.keep("forward and backward", times)
    for case in CASES:
        counts = [_pairs(case, length) for length in lengths]
        seconds = [times[f"{case} at {length:,}"].median for length in lengths]
        for length, seen, time in zip(lengths, counts, seconds, strict=True):
            report.rows.append([case, length, seen, time * 1e3, time / seen / HEADS * 1e9])
        found = exponent(counts, seconds)
        report.figures += [
            Figure(f"{case}: exponent of time", found, "", MOST, at_least=False),
            Figure(f"{case}: exponent of time", found, "", LEAST),
        ]


def exponent(sizes: list[int], values: list[float]) -> float:
    """The slope of log value against log size by least squares."""
    x, y = ([math.log(max(value, 1e-12)) for value in row] for row in (sizes, values))
    center_x, center_y = sum(x) / len(x), sum(y) / len(y)
    across = sum((a - center_x) * (b - center_y) for a, b in zip(x, y, strict=True))
    return across / sum((a - center_x) ** 2 for a in x)


def _memory(report: Report, settings: Settings) -> None:
    lengths = list(MEMORY_LENGTHS) if not settings.quick else [2048, 8192]
    for case in CASES:
        beyond = [
            float(peak_beyond("scaling", case, length=length, settings=settings))
            for length in lengths
        ]
        growth = exponent(lengths, [max(value, 2.0**20) for value in beyond])
        report.most(f"{case}: exponent of memory", growth, "", MOST)
        listed = ", ".join(
            f"{value / 2**20:.1f} MiB at {length:,}"
            for length, value in zip(lengths, beyond, strict=True)
        )
        report.notes.append(f"{case}: {listed} beyond the arrays.")


def _planning(report: Report, length: int) -> None:
    works = {text: prepared(_planner(text, length)) for text in READY_MADE}
    rounds = report.settings.rounds * (1 if report.settings.quick else 3)
    times = alternate(works, rounds=rounds, label=f"planning {length:,}")
    report.keep("planning", times)
    for text, found in times.items():
        name = text.replace(", seed={seed}", "")
        report.most(f"planning {name} at {length:,}", found.median * 1e3, "ms", PLANNING_BAR)


def _planner(text: str, length: int) -> Callable[[], Callable[[], object]]:
    seeds = count()

    def prepare() -> Callable[[], object]:
        memory.clear()
        tokens = Tokens.arange(0, length)
        pattern = parse(text.format(seed=next(seeds))).at(0, 0)
        return lambda: plan(pattern, q_tokens=tokens, k_tokens=tokens)

    return prepare


def probe(case: str, length: int) -> Probe:
    """For the peak of memory: one step in a process of its own."""

    def arrays() -> object:
        *leaves, above = _inputs(length)
        return leaves, above, [torch.ones_like(x) for x in (*leaves, above)]

    def work(length: int) -> object:
        return _cut(case, length, _inputs(length))()()

    return Probe(lambda: work(512), arrays, lambda: work(length))


def _inputs(length: int) -> list[Tensor]:
    """query, key, value; and the gradient that comes from above."""
    torch.manual_seed(0)
    return [torch.randn(1, HEADS, length, DIM) for _ in range(4)]


def _cut(case: str, length: int, longest: list[Tensor]) -> Callable[[], Callable[[], object]]:
    """Prepares a step on the first tokens of the longest inputs."""

    def prepare() -> Callable[[], object]:
        *leaves, above = (x[:, :, :length].contiguous() for x in longest)
        leaves, pattern = [x.detach().requires_grad_() for x in leaves], CASES[case](length)

        def step() -> object:
            out = attention(*leaves, pattern)
            return leaves, above, out, torch.autograd.grad(out, leaves, above)

        return step

    return prepare


@lru_cache(maxsize=64)
def _pairs(case: str, length: int) -> int:
    """Pairs of a head; of heads that differ, the mean."""
    pattern = CASES[case](length).of_length(length)
    heads = range(HEADS if "head" in pattern.varies_by else 1)
    return round(sum(pairs(pattern.at(0, head), length) for head in heads) / len(heads))
