"""bfloat16 against float32 at the same pattern, forward alone and with the backward pass."""

from __future__ import annotations

from collections.abc import Callable

import torch

from eyeline import Causal, Pattern, Tokens, attention, sliding_window, streaming
from eyeline.measuring.timing import Times, ratio, timed

from .harness import alternate
from .machine import product_rate
from .report import Report
from .settings import Settings

HEADS, DIM = 8, 64
PATTERNS: dict[str, Pattern] = {
    "sliding_window(256)": sliding_window(256),
    "streaming(256, 4)": streaming(256, 4),
    "causal, documents": Causal(),
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
FORWARD_BAR, BOTH_BAR = 1.8, 1.0


def run(settings: Settings) -> None:
    length = settings.size(16_384, 2048)
    report = Report(
        "halves",
        "bfloat16 against float32",
        settings,
        ["pattern", "pass", "float32 ms", "bfloat16 ms", "times faster"],
        {"batch": 1, "heads": HEADS, "width": DIM, "length": length},
    )
    for passes, bar in (("forward", FORWARD_BAR), ("forward and backward", BOTH_BAR)):
        times = _measure(report, passes, length)
        for name in PATTERNS:
            slow, fast = (times[f"{name} {dtype}"] for dtype in DTYPES)
            found = ratio(slow, fast)
            row = [name, passes, slow.median * 1e3, fast.median * 1e3, found.value]
            report.rows.append(list(row))
            report.ratio(f"{name}, {passes}", found, bar)
    rates = {name: product_rate(dtype) / 1e9 for name, dtype in DTYPES.items()}
    report.notes += [
        "matrix products here: "
        + ", ".join(f"{rate:.0f} GFLOP/s in {name}" for name, rate in rates.items())
        + ".",
        "torch's fused operator takes as long in bfloat16 as in float32 on processors without "
        "matrix units for it; there the backward pass is computed in float32.",
    ]
    report.finish()


def _measure(report: Report, passes: str, length: int) -> dict[str, Times]:
    works = {
        f"{name} {label}": timed(_step(pattern, dtype, length, backward=passes != "forward"))
        for name, pattern in PATTERNS.items()
        for label, dtype in DTYPES.items()
    }
    times = alternate(works, rounds=report.settings.rounds, label=f"halves: {passes}")
    report.keep(passes, times)
    return times


def _step(
    pattern: Pattern, dtype: torch.dtype, length: int, *, backward: bool
) -> Callable[[], object]:
    torch.manual_seed(0)
    *leaves, above = (torch.randn(1, HEADS, length, DIM).to(dtype) for _ in range(4))
    leaves = [x.requires_grad_(backward) for x in leaves]
    tokens = Tokens.packed([512, 1500, 36] * (length // 2048))

    def step() -> object:
        out = attention(*leaves, pattern, q_tokens=tokens, k_tokens=tokens)
        return out, torch.autograd.grad(out, leaves, above) if backward else None

    return step
