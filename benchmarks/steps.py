"""A training step of a GPT-2 of 10 million parameters, against transformers' with SDPA."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import nn

from eyeline import sliding_window
from eyeline.measuring.timing import ratio, timed
from eyeline.models import GPT2, GPT2Config
from eyeline.patterns import Causal, Pattern

from .harness import alternate
from .report import Report
from .settings import Settings

OURS, THEIRS = "eyeline", "transformers"
VOCABULARY, WIDTH, LAYERS, HEADS = 1024, 384, 5, 6


def run(settings: Settings) -> None:
    long = settings.size(8192, 1024)
    cases: list[tuple[str, int, int, Pattern, float]] = [
        ("512 tokens, causal", settings.size(512, 128), 8, Causal(), 1.0),
        (f"{long:,} tokens, sliding_window(256)", long, 1, sliding_window(256), 2.0),
    ]
    report = Report(
        "steps",
        "A training step of a GPT-2 of 10M parameters, float32, AdamW",
        settings,
        ["case", "batch", "eyeline ms", "transformers ms"],
        {"width": WIDTH, "layers": LAYERS, "heads": HEADS, "vocabulary": VOCABULARY},
    )
    for name, length, batch, pattern, bar in cases:
        _measure(report, name, length, settings.size(batch, 1), pattern, bar)
    report.notes += [
        f"parameters: {_count(_ours(512, Causal())):,}, the table of positions left out.",
        "transformers: GPT2LMHeadModel with attn_implementation=sdpa and labels; it has no window, "
        "so at the longer length it looks at all that came before.",
        "both without dropout: forward, backward, clipping to norm 1, one step of AdamW.",
    ]
    report.finish()


def _measure(
    report: Report, name: str, length: int, batch: int, pattern: Pattern, bar: float
) -> None:
    torch.manual_seed(0)
    ids = torch.randint(0, VOCABULARY, (batch, length))
    ours, theirs = _ours(length, pattern), _theirs(length)
    works = {
        OURS: timed(_step(ours, lambda: ours.losses(ids).mean())),
        THEIRS: timed(_step(theirs, lambda: theirs(ids, labels=ids).loss)),
    }
    times = alternate(works, rounds=2 * report.settings.rounds, label=f"steps: {name}", warmups=2)
    report.keep(name, times)
    both = [times[x].median * 1e3 for x in (OURS, THEIRS)]
    report.rows.append([name, batch, *both])
    report.ratio(f"{name}: faster than transformers", ratio(times[THEIRS], times[OURS]), bar)


def _step(model: nn.Module, loss: Callable[[], torch.Tensor]) -> Callable[[], None]:
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def work() -> None:
        loss().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return work


def _ours(length: int, pattern: Pattern) -> GPT2:
    config = GPT2Config(
        VOCABULARY, width=WIDTH, hidden=4 * WIDTH, layers=LAYERS, heads=HEADS, trained_length=length
    )
    return GPT2(config, pattern)


def _theirs(length: int) -> Any:
    transformers = import_module("transformers")
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=length,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="sdpa",
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def _count(model: GPT2) -> int:
    return sum(p.numel() for n, p in model.named_parameters() if "position" not in n)
