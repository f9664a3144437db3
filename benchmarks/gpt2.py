"""GPT-2 of 124 million random weights, writing 128 tokens after 16, against transformers."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from eyeline.generation import stream
from eyeline.layers import pack
from eyeline.measuring.timing import ratio, timed
from eyeline.models import GPT2, GPT2Config

from .harness import alternate
from .machine import read_rate
from .peers import transformers_write
from .pretrained import cache_bytes, linear_bytes
from .report import Report
from .settings import Settings

OURS, THEIRS = "eyeline", "transformers"
PROMPT, BARS = 16, {"bfloat16": 2.0, "float32": 1.2}
SMALL = GPT2Config(50_257, width=768, hidden=3072, layers=12, heads=12, trained_length=1024)


def run(settings: Settings) -> None:
    count = settings.size(128, 8)
    report = Report(
        "gpt2",
        "Writing with GPT-2, 124M random weights, batch 1, greedy",
        settings,
        ["contender", "dtype", "tokens/s", "ms a token", "of read rate"],
        {"prompt tokens": PROMPT, "written tokens": count},
    )
    rate = read_rate()
    for dtype in settings.dtypes:
        _measure(report, dtype, count, rate)
    report.notes += [
        "of read rate: the time that the weights and the cache take to be read from memory, over "
        "the time of a token.",
        "both models hold the same weights; the logits of the prompt agree.",
    ]
    report.finish()


def _measure(report: Report, dtype: str, count: int, rate: float) -> None:
    torch.manual_seed(0)
    kind: torch.dtype = getattr(torch, dtype)
    theirs = _transformers(kind)
    ours = copy_of(theirs, SMALL, kind)
    prompt = torch.randint(0, SMALL.vocabulary, (PROMPT,)).tolist()
    _agree(ours, theirs, prompt, kind)
    pack(ours)

    def write(name: str) -> None:
        if name == OURS:
            text = list(stream(ours, prompt, max_new_tokens=count))
        else:
            text = transformers_write(theirs, prompt, count)
        assert len(text) == count

    works = {OURS: timed(lambda: write(OURS)), THEIRS: timed(lambda: write(THEIRS))}
    times = alternate(works, rounds=report.settings.rounds, label=f"gpt2 {dtype}")
    report.keep(dtype, times)
    read = linear_bytes(ours) + cache_bytes(SMALL, PROMPT + count / 2, dtype)
    for name in (OURS, THEIRS):
        each = times[name].median / count
        report.rows.append([name, dtype, 1 / each, each * 1e3, read / rate / each])
    report.ratio(f"{dtype}: faster than generate", ratio(times[THEIRS], times[OURS]), BARS[dtype])


def _transformers(dtype: torch.dtype) -> Any:
    transformers = import_module("transformers")
    config = transformers.GPT2Config(attn_implementation="sdpa")
    return transformers.GPT2LMHeadModel(config).to(dtype).eval()


def copy_of(theirs: Any, config: GPT2Config, dtype: torch.dtype) -> GPT2:
    """Our model with the weights of theirs, whose matrices stand the other way round."""
    ours, stored = GPT2(config).to(dtype), theirs.state_dict()
    from eyeline.models.gpt2 import weight_names

    names = weight_names(config, "huggingface", tuple(stored))
    with torch.no_grad():
        for name, parts in names.items():
            pieces = [stored[p.name].T if p.transposed else stored[p.name] for p in parts]
            ours.get_parameter(name).copy_(torch.cat(pieces))
    return ours.eval()


@torch.inference_mode()
def _agree(ours: GPT2, theirs: Any, prompt: list[int], dtype: torch.dtype) -> None:
    ids = torch.tensor([prompt])
    apart = (ours(ids) - theirs(ids).logits).abs().max().item()
    assert apart < (1e-4 if dtype == torch.float32 else 0.2), apart
