"""On a GPU: the flex kernel against raw FlexAttention at the same mask, and planning its blocks."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from eyeline import Pattern, Tokens, attention, parse
from eyeline.measuring.timing import Ratio, Times, ratio
from eyeline.planning.flex_blocks import block_mask

from .harness import alternate, say
from .report import Report
from .settings import Settings

BATCH, HEADS, DIM = 1, 8, 64
ATTENTION, PLANNING = 16_384, 32_768
# What a user of FlexAttention writes for the same rule.
CASES: dict[str, tuple[str, Callable[..., Tensor]]] = {
    "causal": ("causal", lambda b, h, i, j: i >= j),
    "window": ("window(left=128, right=128)", lambda b, h, i, j: (i - j).abs() <= 128),
    "sliding_window": ("sliding_window(256)", lambda b, h, i, j: (i >= j) & (i - j < 256)),
    "streaming": (
        "streaming(256, 4)",
        lambda b, h, i, j: (i >= j) & ((i - j < 256) | (j < 4)),
    ),
    "strided": (
        "causal & (window(left=128, right=0) | strided(128))",
        lambda b, h, i, j: (i >= j) & ((i - j <= 128) | ((i - j) % 128 == 0)),
    ),
}


def run(settings: Settings) -> None:
    report = Report(
        "flex_cuda",
        "FlexAttention on a GPU, given our blocks and given its own",
        settings,
        ["pattern", "what", "tokens", "eyeline ms", "raw ms"],
        {"batch": BATCH, "heads": HEADS, "width": DIM, "dtype": "bfloat16"},
    )
    if not torch.cuda.is_available():
        report.notes.append("there is no GPU: nothing was measured.")
        print(report.notes[0])
        return
    report.sizes["GPU"] = torch.cuda.get_device_name()
    for name, (text, mask_mod) in CASES.items():
        _attend(report, name, parse(text), mask_mod, settings.size(ATTENTION, 2048))
        _plan(report, name, parse(text), mask_mod, settings.size(PLANNING, 4096))
    report.notes += [
        "raw: torch.compile(flex_attention) with create_block_mask of the rule as one writes it.",
        "planning: blocks for tokens not seen before, on the GPU at the end; raw runs uncompiled.",
        "seconds are taken after the device has finished.",
    ]
    report.finish()


def _attend(report: Report, name: str, pattern: Pattern, mask_mod: Any, length: int) -> None:
    torch.compiler.reset()  # kernels for this pattern and length only, on both sides
    torch.manual_seed(0)
    shape = (BATCH, HEADS, length, DIM)
    inputs = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    above = torch.randn_like(inputs[0])
    theirs = create_block_mask(mask_mod, None, None, length, length, device="cuda")
    raw = torch.compile(flex_attention, fullgraph=True)
    contenders: dict[str, Callable[..., Tensor]] = {
        "eyeline": lambda q, k, v: attention(q, k, v, pattern, backend="flex"),
        "raw": lambda q, k, v: raw(q, k, v, block_mask=theirs),
    }
    for what in ("forward", "forward and backward"):
        leaves = [x.detach().requires_grad_(what != "forward") for x in inputs]
        works = {
            key: _finished(_step(attend, leaves, above, backward=what != "forward"))
            for key, attend in contenders.items()
        }
        times = alternate(works, rounds=report.settings.rounds, label=f"{name} {what}", warmups=3)
        _keep(report, name, what, length, times, 1.0)


def _plan(report: Report, name: str, pattern: Pattern, mask_mod: Any, length: int) -> None:
    def mine() -> object:
        tokens = Tokens.arange(0, length)
        return block_mask(pattern, q_tokens=tokens, k_tokens=tokens, device="cuda")

    def raw() -> object:
        return create_block_mask(mask_mod, None, None, length, length, device="cuda")

    works = {"eyeline": _finished(mine), "raw": _finished(raw)}
    times = alternate(works, rounds=report.settings.rounds, label=f"{name} planning")
    _keep(report, name, "planning", length, times, 100.0)


def _keep(
    report: Report, name: str, what: str, length: int, times: dict[str, Times], bar: float
) -> None:
    report.keep(f"{name} {what}", times)
    mine, raw = times["eyeline"], times["raw"]
    report.rows.append([name, what, length, mine.median * 1e3, raw.median * 1e3])
    found: Ratio = ratio(raw, mine)
    report.ratio(f"{name}, {what}", found, bar)
    say(f"{name}, {what}: {found.value:.2f} ×")


def _step(
    attend: Callable[..., Tensor], leaves: list[Tensor], above: Tensor, *, backward: bool
) -> Callable[[], object]:
    def step() -> object:
        out = attend(*leaves)
        return torch.autograd.grad(out, leaves, above) if backward else out

    return step


def _finished(work: Callable[[], object]) -> Callable[[], float]:
    """Seconds until the device has finished, of ten runs in a row for what is short."""

    def measure() -> float:
        torch.cuda.synchronize()
        start = perf_counter()
        for _ in range(10):
            work()
        torch.cuda.synchronize()
        return (perf_counter() - start) / 10

    return measure
