"""A GGUF file to the first token: fresh processes of ours and of transformers, alternating."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import torch

from eyeline.measuring.timing import Times, ratio

from .fresh import last_json, run_fresh
from .harness import alternate
from .report import Report
from .settings import MODEL, Settings

PROMPT = "Attention is the ability to"
OURS, THEIRS = "eyeline", "transformers"
STAGES = ("process", "imports", "load and first token")


def run(settings: Settings) -> None:
    from eyeline.checkpoints.resolve import resolve

    path = resolve(MODEL)
    report = Report(
        "loading",
        "Loading a GGUF file to the first token, each in a fresh process",
        settings,
        ["contender", "dtype", *(f"{stage} s" for stage in STAGES), "first id"],
        {"model": MODEL, "file bytes": path.stat().st_size, "prompt": f'"{PROMPT}"'},
    )
    for dtype in settings.dtypes:
        _measure(report, path, dtype)
    report.notes += [
        "process: from its start to its end, imports included. load and first token: without "
        "importing torch and the library; the file, its tokenizer, one greedy token.",
        "the file is in the page cache for everybody; transformers dequantises the same weights.",
    ]
    report.finish()


def _measure(report: Report, path: Path, dtype: str) -> None:
    details: dict[str, list[dict[str, float]]] = {OURS: [], THEIRS: []}

    def case(name: str) -> Callable[[], float]:
        def measure() -> float:
            command = [sys.executable, "-m", "benchmarks.loading", name, str(path), dtype]
            seconds, printed = run_fresh(command, report.settings)
            details[name].append({**last_json(printed), "process": seconds})
            return seconds

        return measure

    rounds = report.settings.rounds
    alternate({name: case(name) for name in details}, rounds=rounds, label=f"loading {dtype}")
    times = {
        stage: {
            name: Times(tuple(each[stage] for each in found[-rounds:]))
            for name, found in details.items()
        }
        for stage in STAGES
    }
    for name, found in details.items():
        medians = [times[stage][name].median for stage in STAGES]
        report.rows.append([name, dtype, *medians, int(found[-1]["first"])])
    for stage in ("process", "load and first token"):
        report.keep(f"{dtype}, {stage}", times[stage])
        faster = ratio(times[stage][THEIRS], times[stage][OURS])
        report.ratio(f"{dtype}: {stage}, faster than transformers", faster, 3)


def _ours(path: Path, dtype: torch.dtype) -> dict[str, float]:
    start = perf_counter()
    from eyeline.generation import stream
    from eyeline.loading import load

    imported = perf_counter()
    loaded = load(path, dtype=dtype)
    assert loaded.tokenizer is not None
    first = next(stream(loaded.model, loaded.tokenizer.encode(PROMPT), max_new_tokens=1))
    return _stages(start, imported, first)


def _theirs(path: Path, dtype: torch.dtype) -> dict[str, float]:
    start = perf_counter()
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: F401  (timed alone)

    from .peers import transformers_model, transformers_tokenizer, transformers_write

    imported = perf_counter()
    tokenizer, model = transformers_tokenizer(path), transformers_model(path, dtype)
    first = transformers_write(model, tokenizer(PROMPT)["input_ids"], 1)[0]
    return _stages(start, imported, first)


def _stages(start: float, imported: float, first: int) -> dict[str, float]:
    done = perf_counter() - imported
    return {"imports": imported - start, "load and first token": done, "first": first}


def main() -> None:
    which, path, dtype = sys.argv[1:]
    measure = _ours if which == OURS else _theirs
    print(json.dumps(measure(Path(path), getattr(torch, dtype))))


if __name__ == "__main__":
    main()
