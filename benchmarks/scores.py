"""What score modifiers and dropout add to a window's time and memory, forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from eyeline import attention, sliding_window
from eyeline.measuring.timing import ratio, timed
from eyeline.scores import ALiBi, OffsetBias, ScoreMod, Shaw, Softcap, T5Bias, TransformerXL

from .harness import alternate
from .memory import Probe, peak_beyond
from .report import Report
from .scaling import exponent
from .settings import Settings

HEADS, DIM, WINDOW, CLIP = 8, 64, 256, 16
PLAIN = "nothing"
T5 = "T5Bias"
SHAW = f"Shaw, clipped at {CLIP}"
DROPOUT = "dropout 0.1"
MODS: dict[str, Callable[[], ScoreMod | None]] = {
    PLAIN: lambda: None,
    "ALiBi": lambda: ALiBi(HEADS),
    T5: lambda: T5Bias(HEADS, bidirectional=False),
    f"OffsetBias, clipped at {CLIP}": lambda: OffsetBias(HEADS, CLIP),
    SHAW: lambda: Shaw(DIM, CLIP),
    "TransformerXL": lambda: TransformerXL(HEADS, DIM),
    "Softcap": lambda: Softcap(30.0),
    DROPOUT: lambda: None,
}
BARS = {T5: 1.5, SHAW: 2.0}
MEMORY_LENGTHS = (16_384, 131_072)
# The working memory of one piece: less than that is a matter of chance.
PIECE = 4.0 * 2**20


def run(settings: Settings) -> None:
    length = settings.size(16_384, 2048)
    report = Report(
        "scores",
        "Score modifiers and dropout, forward and backward, float32",
        settings,
        ["with", "ms", "× nothing", "beyond MiB"],
        {"batch": 1, "heads": HEADS, "width": DIM, "length": length, "window": WINDOW},
    )
    works = {case: timed(_step(case, length)) for case in MODS}
    times = alternate(works, rounds=settings.rounds, label="scores")
    report.keep("forward and backward", times)
    lengths = list(MEMORY_LENGTHS) if not settings.quick else [2048, 8192]
    peaks = {
        case: [float(peak_beyond("scores", case, length=n, settings=settings)) for n in lengths]
        for case in BARS
    }
    for case, taken in times.items():
        beyond = peaks[case][0] / 2**20 if case in peaks else None
        share = ratio(taken, times[PLAIN])
        report.rows.append([case, taken.median * 1e3, share.value, beyond])
        if case in BARS:
            report.most(f"{case}: time of it without", share.value, "×", BARS[case])
    for case, found in peaks.items():
        growth = exponent(lengths, [max(peak, PIECE) for peak in found])
        report.most(f"{case}: exponent of memory", growth, "", 1.1)
    report.notes += [
        "all of them trained where they can be; the steps of scores are done in plain products, "
        "since torch's fused operator gives no gradient of a bias.",
        "beyond: peak resident size beyond inputs, outputs and gradients, in a fresh process; "
        "exponent: from " + " to ".join(f"{n:,}" for n in lengths) + " tokens, and less than "
        f"{PIECE / 2**20:.0f} MiB, the working memory of one piece, counted as that.",
    ]
    report.finish()


def probe(case: str, length: int) -> Probe:
    """For the peak of memory: the same step in a process of its own."""

    def arrays() -> object:
        leaves, above = _inputs(length)
        return leaves, above, [torch.ones_like(above), *(torch.ones_like(x) for x in leaves)]

    return Probe(_step(case, 2 * WINDOW), arrays, lambda: _step(case, length)())


def _step(case: str, length: int) -> Callable[[], object]:
    leaves, above = _inputs(length)
    mod, dropout = MODS[case](), 0.1 if case == DROPOUT else 0.0
    learned = list(mod.parameters()) if isinstance(mod, nn.Module) else []

    def step() -> object:
        out = attention(*leaves, sliding_window(WINDOW), score_mod=mod, dropout_p=dropout)
        return leaves, above, out, torch.autograd.grad(out, (*leaves, *learned), above)

    return step


def _inputs(length: int) -> tuple[list[Tensor], Tensor]:
    torch.manual_seed(0)
    *leaves, above = (torch.randn(1, HEADS, length, DIM) for _ in range(4))
    return [x.requires_grad_() for x in leaves], above
