"""attention forward and backward in float32, against SDPA causal and local-attention."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from eyeline import Causal, Pattern, Tokens, attention, pairs, sliding_window
from eyeline import streaming as streaming_pattern
from eyeline.measuring.timing import ratio, timed

from .harness import alternate
from .machine import product_rate
from .memory import Probe, peak_beyond
from .peers import local_attention
from .report import Report
from .settings import Settings
from .texts import mixed_lengths

HEADS, DIM, WINDOW, SINKS, LONGEST = 8, 64, 256, 4, 2048
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]

SDPA = "SDPA causal"
SLIDING = f"eyeline sliding_window({WINDOW})"
STREAMING = f"eyeline streaming({WINDOW}, {SINKS})"
DOCUMENTS = "eyeline causal, documents"
LOCAL = f"local-attention {WINDOW} × 1"
# The same window in smaller blocks, with less computed around it: the peer is faster so.
FINER = f"local-attention {WINDOW // 4} × 4"
CASES = (SDPA, "eyeline causal", SLIDING, STREAMING, DOCUMENTS, LOCAL, FINER)


def run(settings: Settings) -> None:
    length = settings.size(16_384, 1024)
    report = Report(
        "attention",
        "Attention, forward and backward, float32",
        settings,
        ["contender", "pairs", "of causal", "ms", "× SDPA", "of product", "beyond MiB", "× in"],
        {"batch": 1, "heads": HEADS, "width": DIM, "length": length, "window": WINDOW},
    )
    rate = product_rate(torch.float32)
    inputs, above = _inputs(length)
    works = {case: timed(_step(_attend(case, length), inputs, above)) for case in CASES}
    times = alternate(works, rounds=settings.rounds, label="attention")
    report.keep("forward and backward", times)
    beyond = {
        case: peak_beyond("attention", case, length=length, settings=settings) for case in CASES
    }
    size = sum(x.numel() * x.element_size() for x in inputs)
    causal = _pairs(SDPA, length)
    for case, found in times.items():
        seen = _pairs(case, length)
        share = 14.0 * seen * HEADS * DIM / found.median / rate
        faster = times[SDPA].median / found.median
        row = [case, seen, seen / causal, found.median * 1e3, faster, share]
        report.rows.append([*row, beyond[case] / 2**20, beyond[case] / size])
    report.ratio("sliding_window against SDPA causal", ratio(times[SDPA], times[SLIDING]), 10)
    report.ratio("sliding_window against local-attention", ratio(times[LOCAL], times[SLIDING]), 3.5)
    report.ratio(f"sliding_window against {FINER}", ratio(times[FINER], times[SLIDING]))
    report.ratio("streaming against SDPA causal", ratio(times[SDPA], times[STREAMING]), 9)
    report.ratio("documents against SDPA causal", ratio(times[SDPA], times[DOCUMENTS]), 3)
    for case in (SLIDING, STREAMING, DOCUMENTS):
        report.most(f"memory beyond arrays, {case[8:]}", beyond[case] / size, "× inputs", 0.5)
    report.notes += [
        f"matrix product here: {rate / 1e9:.0f} GFLOP/s in float32, {2048} × {2048}; the share "
        "counts 14 · width operations for each pair that looks and each head.",
        f"local-attention's exact window of {WINDOW} counts the token itself on top: "
        f"{WINDOW + 1} keys where ours sees {WINDOW}; its output equals sliding_window"
        f"({WINDOW + 1}) up to {_difference(length):.1e}.",
        f"documents: lengths drawn evenly from 8 to {min(LONGEST, length)}, seed 0.",
        "beyond: peak resident size beyond inputs, outputs and gradients, in a fresh process.",
    ]
    report.finish()


def probe(case: str, length: int) -> Probe:
    """For the peak of memory: the same step in a process of its own."""

    def work(length: int) -> object:
        inputs, above = _inputs(length)
        return inputs, above, _step(_attend(case, length), inputs, above)()

    def arrays() -> object:
        inputs, above = _inputs(length)
        return inputs, above, [torch.ones_like(above), *(torch.ones_like(x) for x in inputs)]

    # As small as each can be: what a warm-up leaves in the heap is taken off the peak.
    smallest = WINDOW if case in (LOCAL, FINER) else 2 * DIM
    return Probe(lambda: work(smallest), arrays, lambda: work(length))


def _inputs(length: int) -> tuple[list[Tensor], Tensor]:
    """query, key, value; and the gradient that comes from above."""
    torch.manual_seed(0)
    shape = (1, HEADS, length, DIM)
    return [torch.randn(shape, requires_grad=True) for _ in range(3)], torch.randn(shape)


def _step(attend: Attend, inputs: list[Tensor], above: Tensor) -> Callable[[], object]:
    def step() -> object:
        out = attend(*inputs)
        return out, torch.autograd.grad(out, inputs, above)

    return step


def _attend(case: str, length: int) -> Attend:
    if case == SDPA:
        return lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True)
    if case in (LOCAL, FINER):
        return local_attention(WINDOW, 1) if case == LOCAL else local_attention(WINDOW // 4, 4)
    pattern, tokens = _pattern(case), _tokens(case, length)
    return lambda q, k, v: attention(q, k, v, pattern, q_tokens=tokens, k_tokens=tokens)


def _pattern(case: str) -> Pattern:
    return {
        SDPA: Causal(),
        "eyeline causal": Causal(),
        SLIDING: sliding_window(WINDOW),
        STREAMING: streaming_pattern(WINDOW, SINKS),
        DOCUMENTS: Causal(),
        LOCAL: sliding_window(WINDOW + 1),
        FINER: sliding_window(WINDOW + 1),
    }[case]


def _tokens(case: str, length: int) -> Tokens | None:
    return Tokens.packed(mixed_lengths(length, LONGEST)) if case == DOCUMENTS else None


def _pairs(case: str, length: int) -> int:
    tokens = _tokens(case, length)
    if tokens is None:
        return pairs(_pattern(case), length)
    return pairs(_pattern(case), q_tokens=tokens, k_tokens=tokens)


def _difference(length: int) -> float:
    """How far local-attention is from the pattern that it is taken to be."""
    (q, k, v), _ = _inputs(min(length, 2048))
    with torch.no_grad():
        ours = attention(q, k, v, sliding_window(WINDOW + 1))
        theirs = (_attend(case, length)(q, k, v) for case in (LOCAL, FINER))
        return max(float((ours - each).abs().max()) for each in theirs)
