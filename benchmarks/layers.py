"""What the layer adds to its parts: at 4,096 tokens, and for each token that is written."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from eyeline import attention, sliding_window
from eyeline.layers import LayerCache, MultiHeadAttention
from eyeline.measuring.timing import Times, prepared, ratio, timed
from eyeline.tokens import Tokens

from .harness import alternate
from .report import Report
from .settings import Settings

WIDTH, HEADS, KEPT, STEPS = 512, 8, 255, 200
PATTERN = sliding_window(256)


def run(settings: Settings) -> None:
    length = settings.size(4096, 512)
    report = Report(
        "layers",
        "MultiHeadAttention against its parts, float32",
        settings,
        ["work", "parts ms", "layer ms", "layer adds"],
        {"batch": 1, "embed_dim": WIDTH, "heads": HEADS, "length": length, "window": 256},
    )
    layer = MultiHeadAttention(WIDTH, HEADS, pattern=PATTERN)
    for name, training in (("reading", False), ("training step", True)):
        calls = {"parts": lambda x: _looked(layer, x), "layer": layer}
        works = {
            label: timed(_pass(call, layer, length, training)) for label, call in calls.items()
        }
        times = _measure(report, name, works)
        more = ratio(times["layer"], times["parts"]).value - 1
        report.rows.append([name, *_milliseconds(times), f"{100 * more:.1f} %"])
        report.most(f"{name}: the layer adds", 100 * more, "%", 3)
    with torch.no_grad():
        writing = {
            label: prepared(_writing(layer, direct=label == "parts"))
            for label in ("parts", "layer")
        }
        times = _measure(report, "one token", writing)
    extra = (times["layer"].median - times["parts"].median) / STEPS * 1e6
    report.rows.append([f"{STEPS} tokens", *_milliseconds(times), f"{extra:.1f} µs each"])
    report.most("one token: the layer adds", extra, "µs", 30)
    report.notes += [
        "parts: the four projections, split and joined heads, and attention, called directly; "
        "for one token also the cache.",
        f"one token: a query that looks at {KEPT + 1} kept keys; without gradients.",
    ]
    report.finish()


def _measure(report: Report, name: str, works: dict[str, Callable[[], object]]) -> dict[str, Times]:
    timings = {label: timed(work) for label, work in works.items()}
    times = alternate(timings, rounds=3 * report.settings.rounds, label=f"layers: {name}")
    report.keep(name, times)
    return times


def _milliseconds(times: dict[str, Times]) -> list[float]:
    return [times[label].median * 1e3 for label in ("parts", "layer")]


def _looked(layer: MultiHeadAttention, x: Tensor) -> Tensor:
    """The layer written out, without its checks."""
    q, k, v = (
        project(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        for project in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    seen = attention(q, k, v, PATTERN)
    out: Tensor = layer.out_proj(seen.transpose(1, 2).flatten(2))
    return out


def _pass(
    call: Callable[[Tensor], Tensor], layer: MultiHeadAttention, length: int, training: bool
) -> Callable[[], object]:
    torch.manual_seed(0)
    x = torch.randn(1, length, WIDTH, requires_grad=training)
    above, learned = torch.ones(1, length, WIDTH), list(layer.parameters())

    def work() -> object:
        if training:
            return torch.autograd.grad(call(x), (x, *learned), above)
        with torch.no_grad():
            return call(x)

    return work


def _writing(layer: MultiHeadAttention, *, direct: bool) -> Callable[[], Callable[[], object]]:
    """Prepares the writing of tokens after those that are kept, by the layer or by its parts."""
    x = torch.ones(1, 1, WIDTH)
    after = [Tokens.arange(KEPT + step, KEPT + step + 1) for step in range(STEPS)]

    def by_parts(tokens: Tokens, held: LayerCache) -> None:
        q, k, v = (
            project(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for project in (layer.q_proj, layer.k_proj, layer.v_proj)
        )
        key, value, seen = held.cache.append(held.layer, k, v)
        looked = attention(q, key, value, PATTERN, q_tokens=tokens, k_tokens=seen)
        layer.out_proj(looked.transpose(1, 2).flatten(2))

    def prepare() -> Callable[[], object]:
        held, past = layer.new_cache(), Tokens.arange(0, KEPT)
        held.cache.advance(past)
        layer(torch.ones(1, KEPT, WIDTH), q_tokens=past, cache=held)

        def work() -> object:
            for tokens in after:
                held.cache.advance(tokens)
                if direct:
                    by_parts(tokens, held)
                else:
                    layer(x, q_tokens=tokens, cache=held)
            return held

        return work

    return prepare
