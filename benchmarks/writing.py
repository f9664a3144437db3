"""Writing 128 tokens after a prompt of 16, batch 1, against transformers' generate."""

from __future__ import annotations

from eyeline.checkpoints.resolve import resolve
from eyeline.generation import stream
from eyeline.measuring.timing import ratio, timed

from .harness import alternate
from .machine import read_rate
from .peers import transformers_model, transformers_write
from .pretrained import cache_bytes, linear_bytes, ours
from .report import Figure, Report
from .settings import MODEL, Settings
from .texts import reference_ids

OURS, THEIRS = "eyeline", "transformers"
PROMPT, BARS = 16, {"bfloat16": 2.0, "float32": 1.3}


def run(settings: Settings) -> None:
    count = settings.size(128, 8)
    report = Report(
        "writing",
        "Writing, batch 1, greedy",
        settings,
        ["contender", "dtype", "tokens/s", "ms a token", "MB read a token", "of read rate"],
        {"model": MODEL, "prompt tokens": PROMPT, "written tokens": count},
    )
    rate = read_rate()
    for dtype in settings.dtypes:
        _measure(report, dtype, count, rate)
    report.notes += [
        f"memory is read here at {rate / 1e9:.1f} GB/s at best; a token cannot take less than its "
        "weights and its cache take to be read, and the last column is that bound over the time.",
        "times are of the whole call, the prompt included.",
    ]
    report.finish()


def _measure(report: Report, dtype: str, count: int, rate: float) -> None:
    loaded = ours(dtype)
    theirs = transformers_model(resolve(MODEL), loaded.model.embedding.weight.dtype)
    prompt = reference_ids(loaded.tokenizer, PROMPT)
    texts: dict[str, list[int]] = {}

    def write(name: str) -> None:
        if name == OURS:
            texts[name] = list(stream(loaded.model, prompt, max_new_tokens=count))
        else:
            texts[name] = transformers_write(theirs, prompt, count)
        assert len(texts[name]) == count

    works = {OURS: timed(lambda: write(OURS)), THEIRS: timed(lambda: write(THEIRS))}
    times = alternate(works, rounds=report.settings.rounds, label=f"writing {dtype}")
    report.keep(dtype, times)
    cached = cache_bytes(loaded.config, PROMPT + count / 2, dtype)
    for name, model in ((OURS, loaded.model), (THEIRS, theirs)):
        read, each = linear_bytes(model) + cached, times[name].median / count
        share = read / rate / each
        report.rows.append([name, dtype, 1 / each, each * 1e3, read / 1e6, share])
        report.figures.append(Figure(f"{dtype}: {name}'s share of the memory bound", share, ""))
    report.ratio(f"{dtype}: faster than generate", ratio(times[THEIRS], times[OURS]), BARS[dtype])
    same = sum(a == b for a, b in zip(texts[OURS], texts[THEIRS], strict=True))
    report.notes.append(f"{dtype}: {same} of {count} tokens are the same.")
