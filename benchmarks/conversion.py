"""`convert` on torch's own encoder: a training step under a window, against the step before."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import nn

from eyeline import Full, Window, dense_mask, pairs
from eyeline.layers.conversion import convert
from eyeline.measuring.timing import ratio, timed
from eyeline.patterns import Pattern

from .harness import alternate
from .machine import product_rate
from .report import Report
from .settings import Settings

LAYERS, WIDTH, HEADS, HIDDEN, RADIUS = 6, 512, 8, 2048, 128
PATTERN = Window(RADIUS, RADIUS)

TORCH = "nn.TransformerEncoder"
MASKED = "nn.TransformerEncoder, the window as its mask"
SAME = "converted, full"
CONVERTED = f"converted, window({RADIUS}, {RADIUS})"
CASES: dict[str, Pattern | None] = {TORCH: None, MASKED: None, SAME: Full(), CONVERTED: PATTERN}
BAR = 3.0


def run(settings: Settings) -> None:
    length = settings.size(8192, 512)
    sizes = {"layers": LAYERS, "width": WIDTH, "heads": HEADS, "hidden": HIDDEN, "length": length}
    report = Report(
        "conversion",
        "A training step of an encoder of torch, before and after convert(model, pattern), float32",
        settings,
        ["contender", "pairs a head", "ms", "of product"],
        {"batch": 1, **sizes},
    )
    works = {case: timed(_step(case, length)) for case in CASES}
    times = alternate(works, rounds=settings.rounds, label=f"conversion {length:,}")
    report.keep(f"{length:,}", times)
    rate = product_rate(torch.float32)
    for case, found in times.items():
        seen = pairs(PATTERN if case in (MASKED, CONVERTED) else Full(), length)
        work = LAYERS * (14.0 * seen * WIDTH + _products(length))
        report.rows.append([case, seen, found.median * 1e3, work / found.median / rate])
    report.ratio("step before over step after", ratio(times[TORCH], times[CONVERTED]), BAR)
    report.ratio("the same with torch's own mask", ratio(times[MASKED], times[CONVERTED]))
    report.ratio("step before over converted, full", ratio(times[TORCH], times[SAME]))
    report.notes += _notes(length, rate)
    report.finish()


def _products(length: int) -> float:
    """Operations of a layer's projections and feed-forward, forward and backward."""
    return 6.0 * length * WIDTH * (4 * WIDTH + 2 * HIDDEN)


def _notes(length: int, rate: float) -> list[str]:
    return [
        f"matrix product here: {rate / 1e9:.0f} GFLOP/s in float32; the share counts 14 · width "
        "operations for each pair that looks, and those of all other products of the layers.",
        "a step: forward, mean square of the output, backward, AdamW. No dropout: torch's own "
        "dropout of weights would make it leave its fused attention and keep n² numbers a head.",
        f"outputs at {min(length, 1024):,} tokens differ from torch's under the same mask by at "
        f"most {_difference(min(length, 1024)):.1e}.",
    ]


def _step(case: str, length: int) -> Callable[[], object]:
    model = _model(case)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = _input(length)
    mask = ~dense_mask(PATTERN, length) if case == MASKED else None

    def step() -> None:
        optimizer.zero_grad()
        model(x, mask=mask).square().mean().backward()
        optimizer.step()

    return step


def _model(case: str) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, dropout=0.0, batch_first=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.TransformerEncoder(layer, LAYERS)
    pattern = CASES[case]
    if pattern is not None:
        convert(model, pattern)
    return model


def _input(length: int) -> torch.Tensor:
    return torch.randn(1, length, WIDTH, generator=torch.Generator().manual_seed(1))


def _difference(length: int) -> float:
    """How far the converted model is from torch's with the window as its mask."""
    x, mask = _input(length), ~dense_mask(PATTERN, length)
    with torch.no_grad():
        # In training mode, so that both compute layer by layer.
        found = _model(CONVERTED)(x) - _model(MASKED)(x, mask=mask)
    return float(found.abs().max())
