"""Reading 8,192 tokens: under streaming, under causal, and by transformers with SDPA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from eyeline import Causal, pairs, streaming
from eyeline.checkpoints.resolve import resolve
from eyeline.loading import Loaded
from eyeline.measuring.timing import ratio, timed
from eyeline.patterns import Pattern

from .harness import alternate
from .machine import product_rate
from .peers import transformers_model
from .pretrained import ours, reading_flops
from .report import Report
from .settings import MODEL, Settings
from .texts import reference_ids

SIZE, SINKS = 512, 4
STREAMING, CAUSAL, THEIRS = f"eyeline streaming({SIZE}, {SINKS})", "eyeline causal", "transformers"
PATTERNS: dict[str, Pattern] = {STREAMING: streaming(SIZE, SINKS), CAUSAL: Causal()}


def run(settings: Settings) -> None:
    length = settings.size(8192, 768)
    report = Report(
        "reading",
        "Reading a text into the cache, up to the logits of the next token",
        settings,
        ["contender", "dtype", "s", "tokens/s", "of causal pairs", "of product rate"],
        {"model": MODEL, "batch": 1, "tokens": length},
    )
    for dtype in settings.dtypes:
        _measure(report, dtype, length)
    report.finish()


def _measure(report: Report, dtype: str, length: int) -> None:
    models = {name: ours(dtype, pattern) for name, pattern in PATTERNS.items()}
    theirs = transformers_model(resolve(MODEL), getattr(torch, dtype))
    ids = torch.tensor([reference_ids(models[CAUSAL].tokenizer, length)])
    logits: dict[str, Tensor] = {}

    def keep(name: str, read: Callable[[], Tensor]) -> Callable[[], object]:
        def work() -> None:
            with torch.inference_mode():
                logits[name] = read()

        return work

    works = {name: keep(name, _reader(loaded, ids)) for name, loaded in models.items()}
    works[THEIRS] = keep(THEIRS, _their_reader(theirs, ids))
    rate = product_rate(getattr(torch, dtype))
    times = alternate(
        {name: timed(work) for name, work in works.items()},
        rounds=report.settings.rounds,
        label=f"reading {dtype}",
    )
    report.keep(dtype, times)
    causal = pairs(Causal(), length)
    for name, found in times.items():
        seen = pairs(PATTERNS.get(name, Causal()), length)
        share = reading_flops(models[CAUSAL].config, length, seen) / found.median / rate
        row = [name, dtype, found.median, length / found.median, seen / causal, share]
        report.rows.append(row)
    faster = ratio(times[CAUSAL], times[STREAMING])
    report.ratio(f"{dtype}: streaming faster than causal", faster, 1.6)
    report.ratio(f"{dtype}: causal against transformers", ratio(times[THEIRS], times[CAUSAL]), 1.0)
    apart = float((logits[CAUSAL].float() - logits[THEIRS].float()).abs().max())
    report.notes.append(
        f"{dtype}: matrix product here {rate / 1e9:.0f} GFLOP/s; causal and transformers give "
        f"logits that differ by {apart:.2g} at most."
    )


def _reader(loaded: Loaded, ids: Tensor) -> Callable[[], Tensor]:
    def read() -> Tensor:
        model = loaded.model
        found: Tensor = model(ids, caches=model.new_caches(), last_only=True)[:, -1]
        return found

    return read


def _their_reader(model: Any, ids: Tensor) -> Callable[[], Tensor]:
    def read() -> Tensor:
        found: Tensor = model(ids, use_cache=True, logits_to_keep=1).logits[:, -1]
        return found

    return read
