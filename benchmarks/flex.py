"""Windows forward in float32 against compiled FlexAttention, its mask given or made."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from eyeline import Pattern, Tokens, Window, attention, memory, pairs, sliding_window
from eyeline.measuring.timing import Times, prepared, ratio, timed

from .harness import alternate
from .machine import product_rate
from .peers import flex_attention, flex_mask
from .report import Report
from .settings import Settings

HEADS, DIM = 8, 64
# FlexAttention's own block size, and a smaller one, with less computed around a window.
SIZES = (128, 64)
FREE_BAR, FIRST_BAR = 1.7, 20.0

PATTERNS: dict[str, tuple[Pattern, Callable[..., Tensor]]] = {
    "window(128, 128)": (Window(left=128, right=128), lambda b, h, q, k: (q - k).abs() <= 128),
    "sliding_window(256)": (sliding_window(256), lambda b, h, q, k: (k <= q) & (q - k < 256)),
}


def run(settings: Settings) -> None:
    length = settings.size(16_384, 1024)
    report = Report(
        "flex",
        "Windows forward, float32, against compiled FlexAttention",
        settings,
        ["pattern", "contender", "pairs", "ms", "of product"],
        {"batch": 1, "heads": HEADS, "width": DIM, "length": length},
    )
    rate = product_rate(torch.float32)
    torch.manual_seed(0)
    inputs = [torch.randn(1, HEADS, length, DIM) for _ in range(3)]
    with torch.no_grad():
        for name in PATTERNS:
            _measure(report, name, inputs, rate)
    report.notes += [
        f"matrix product here: {rate / 1e9:.0f} GFLOP/s in float32; the share counts 4 · width "
        "operations for each pair that looks and each head.",
        "given: the BlockMask, and our plan, were made before; the faster block size is compared.",
        "first use: ours plans for tokens not seen before; FlexAttention makes its BlockMask. "
        "Nobody's compilation is counted: it is done in the warm-up.",
        "made by compiled code: torch.compile(create_block_mask), which is compiled anew for each "
        "mask; that compilation takes longer than making the mask without it.",
    ]
    report.finish()


def _measure(report: Report, name: str, inputs: list[Tensor], rate: float) -> None:
    length = inputs[0].shape[2]
    given, first = _given(name, inputs), _first_use(name, inputs)
    times = alternate(given, rounds=report.settings.rounds, label=f"flex {name}")
    times |= alternate(first, rounds=report.settings.rounds, label=f"flex {name}, first use")
    report.keep(name, times)
    seen = pairs(PATTERNS[name][0], length)
    for case, found in times.items():
        share = 4.0 * seen * HEADS * DIM / found.median / rate
        report.rows.append([name, case, seen, found.median * 1e3, share])
    theirs = min((times[_block(size)] for size in SIZES), key=lambda found: found.median)
    report.ratio(f"{name}, mask given", ratio(theirs, times["eyeline"]), FREE_BAR)
    _first_ratios(report, name, times)
    report.notes.append(f"{name}: outputs differ by at most {_difference(name, inputs):.1e}.")


def _first_ratios(report: Report, name: str, times: dict[str, Times]) -> None:
    ours = times["eyeline, first use"]
    report.ratio(f"{name}, first use", ratio(times["FlexAttention, mask made"], ours), FIRST_BAR)
    compiled = times["FlexAttention, mask made by compiled code"]
    report.ratio(f"{name}, first use, mask made by compiled code", ratio(compiled, ours))


def _block(size: int) -> str:
    return f"FlexAttention, blocks of {size}"


def _given(name: str, inputs: list[Tensor]) -> dict[str, Callable[[], float]]:
    pattern, mask_mod = PATTERNS[name]
    length = inputs[0].shape[2]
    works = {"eyeline": timed(lambda: attention(*inputs, pattern))}
    for size in SIZES:
        attend = flex_attention(flex_mask(mask_mod, length, size, compiled=False))
        works[_block(size)] = timed(lambda attend=attend: attend(*inputs))
    return works


def _first_use(name: str, inputs: list[Tensor]) -> dict[str, Callable[[], float]]:
    pattern, mask_mod = PATTERNS[name]
    length = inputs[0].shape[2]

    def ours() -> Callable[[], object]:
        memory.clear()
        tokens = Tokens.arange(0, length)
        return lambda: attention(*inputs, pattern, q_tokens=tokens, k_tokens=tokens)

    def theirs(compiled: bool) -> object:
        block_mask = flex_mask(mask_mod, length, SIZES[0], compiled=compiled)
        return flex_attention(block_mask)(*inputs)

    return {
        "eyeline, first use": prepared(ours),
        "FlexAttention, mask made": timed(lambda: theirs(False)),
        "FlexAttention, mask made by compiled code": timed(lambda: theirs(True)),
    }


def _difference(name: str, inputs: list[Tensor]) -> float:
    pattern, mask_mod = PATTERNS[name]
    block_mask = flex_mask(mask_mod, inputs[0].shape[2], SIZES[0], compiled=False)
    theirs = flex_attention(block_mask)(*inputs)
    return float((attention(*inputs, pattern) - theirs).abs().max())
