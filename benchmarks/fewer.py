"""Linear attention and fewer keys against the packages that do the same, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from eyeline import Causal
from eyeline.functional import linear_attention
from eyeline.layers import MultiHeadAttention
from eyeline.measuring.timing import ratio, timed
from eyeline.mechanisms import Compressed, LinearAttention, Linformer
from eyeline.mechanisms.linear.features import Favor
from eyeline.tokens import Tokens

from .harness import alternate
from .memory import Probe, peak_beyond
from .report import Report
from .settings import Settings

HEADS, DIM, WIDTH = 8, 64, 512
FACTOR, SUMS = 3, 256
FEATURES = 266  # performer-pytorch's own choice for heads of 64
Call = Callable[..., Tensor]


@dataclass(frozen=True)
class Case:
    """Ours and a peer's, each made for a length; lengths: those at which the peer fits in memory.

    layer: called with tokens (1, n, 512); else with heads, three times (1, 8, n, 64).
    """

    ours: Callable[[int], Call]
    theirs: Callable[[int], Call]
    peer: str
    lengths: tuple[int, ...]
    bar: float | None
    layer: bool = False


def _performer(causal: bool) -> Callable[[int], Call]:
    def make(n: int) -> Call:
        module = import_module("performer_pytorch")
        return module.FastAttention(DIM, nb_features=FEATURES, causal=causal)  # type: ignore[no-any-return]

    return make


def _favor(causal: bool) -> Callable[[int], Call]:
    favor = Favor(DIM, FEATURES)
    return lambda n: lambda q, k, v: linear_attention(q, k, v, feature_map=favor, causal=causal)


def _linear_transformer(blind: int) -> Callable[[int], Call]:
    def make(n: int) -> Call:
        package = import_module("linear_attention_transformer.linear_attention_transformer")
        return lambda q, k, v: package.causal_linear_attn(q, k, v, bucket_size=blind)  # type: ignore[no-any-return]

    return make


def _elu(n: int) -> Call:
    return lambda q, k, v: linear_attention(q, k, v, causal=True)


def _linformer(n: int) -> Call:
    mechanism = Linformer(n, SUMS, num_kv_heads=HEADS, head_dim=DIM, sharing="heads")
    return MultiHeadAttention(WIDTH, HEADS, mechanism=mechanism)


def _their_linformer(n: int) -> Call:
    package: Any = import_module("linformer.linformer")
    made: Call = package.LinformerSelfAttention(WIDTH, n, k=SUMS, heads=HEADS)
    return made


def _compressed(n: int) -> Call:
    mechanism = Compressed(FACTOR, by="conv", num_kv_heads=HEADS, head_dim=DIM, pattern=Causal())
    return MultiHeadAttention(WIDTH, HEADS, mechanism=mechanism)


def _their_compressed(n: int) -> Call:
    package: Any = import_module("memory_compressed_attention")
    made: Call = package.MemoryCompressedAttention(
        WIDTH, HEADS, causal=True, compression_factor=FACTOR
    )
    return made


SHORT, LONG = 8192, 65_536
CASES = {
    "Linformer layer": Case(
        _linformer, _their_linformer, "linformer", (SHORT, LONG), 1.3, layer=True
    ),
    "FAVOR+": Case(_favor(False), _performer(False), "performer-pytorch", (SHORT, LONG), 2.0),
    "FAVOR+ causal": Case(_favor(True), _performer(True), "performer-pytorch", (SHORT,), 10.0),
    "elu + 1 causal": Case(
        _elu, _linear_transformer(1), "linear-attention-transformer", (SHORT,), 1.0
    ),
    "elu + 1 causal, blind spot 64": Case(
        _elu, _linear_transformer(64), "linear-attention-transformer", (SHORT, LONG), 1.0
    ),
    "compressed by convolution, causal": Case(
        _compressed, _their_compressed, "memory-compressed-attention", (SHORT,), 2.0, layer=True
    ),
}


def run(settings: Settings) -> None:
    report = Report(
        "fewer",
        "Linear attention and fewer keys against their packages, forward and backward, float32",
        settings,
        ["what", "tokens", "peer", "ours ms", "peer ms", "ours MiB", "peer MiB"],
        {"batch": 1, "heads": HEADS, "width": DIM, "sums": SUMS, "features": FEATURES},
    )
    for name, case in CASES.items():
        for length in case.lengths:
            _measure(report, name, case, settings.size(length, 256))
    _state(report)
    report.notes += [
        "MiB: peak resident size beyond inputs, outputs and gradients, in a fresh process.",
        "causal FAVOR+ of performer-pytorch without CUDA keeps features × width numbers for every "
        "token, 4.5 GB at 8,192 and eight times that at 65,536, where it does not fit.",
        "linear-attention-transformer: its feature maps are softmax and exp; with a blind spot a "
        "token does not see the 64 before it, which is less work than ours; without, it keeps "
        "width² numbers a token, so it is measured at 8,192 only.",
        "memory-compressed-attention makes the whole matrix: at 65,536 tokens 46 GB and several "
        "times.",
    ]
    report.finish()


def _measure(report: Report, name: str, case: Case, length: int) -> None:
    settings, at = report.settings, f"{name} at {length:,}"
    works = {
        "ours": timed(_step(case.ours(length), case.layer, length)),
        case.peer: timed(_step(case.theirs(length), case.layer, length)),
    }
    times = alternate(works, rounds=settings.rounds, label=f"fewer: {at}")
    report.keep(at, times)
    peaks = [
        peak_beyond("fewer", f"{name}/{who}", length=length, settings=settings) / 2**20
        for who in ("ours", "theirs")
    ]
    taken = [times[who].median * 1e3 for who in works]
    report.rows.append([name, length, case.peer, *taken, *peaks])
    report.ratio(f"{at}: faster than {case.peer}", ratio(times[case.peer], times["ours"]), case.bar)
    if not settings.quick:
        report.most(f"{at}: memory over the peer's", peaks[0] / peaks[1], "×", 0.5)


def _leaves(layer: bool, length: int) -> list[Tensor]:
    torch.manual_seed(0)
    shape = (1, length, WIDTH) if layer else (1, HEADS, length, DIM)
    return [torch.randn(shape, requires_grad=True) for _ in range(1 if layer else 3)]


def _step(call: Call, layer: bool, length: int) -> Callable[[], object]:
    leaves = _leaves(layer, length)
    above = torch.ones_like(leaves[0])
    learned = list(call.parameters()) if isinstance(call, nn.Module) else []
    learned = [x for x in learned if x.requires_grad]

    def work() -> object:
        out = call(*leaves)
        return out, torch.autograd.grad(out, (*leaves, *learned), above, allow_unused=True)

    return work


def probe(case: str, length: int) -> Probe:
    """For the peak of memory: the same step in a process of its own."""
    name, _, who = case.rpartition("/")
    chosen = CASES[name]
    make = chosen.ours if who == "ours" else chosen.theirs

    def arrays() -> object:
        call, leaves = make(length), _leaves(chosen.layer, length)
        learned = list(call.parameters()) if isinstance(call, nn.Module) else []
        likes = [*leaves, *learned, leaves[0], leaves[0]]
        return leaves, [torch.ones_like(x) for x in likes]

    return Probe(
        warm=lambda: _step(make(256), chosen.layer, 256)(),
        arrays=arrays,
        work=lambda: _step(make(length), chosen.layer, length)(),
    )


def _state(report: Report) -> None:
    """A step of writing, after few tokens and after many."""
    steps, long = 200, report.settings.size(LONG, 512)
    works = {f"after {n:,}": timed(_writing(n, steps)) for n in (64, long)}
    times = alternate(works, rounds=3 * report.settings.rounds, label="fewer: writing")
    report.keep("writing", times)
    few, many = times.values()
    report.most(
        f"a step after {long:,} tokens over one after 64", many.median / few.median, "×", 1.1
    )
    report.notes.append(
        f"a step of writing with elu + 1: {few.median / steps * 1e6:.0f} µs after 64 tokens, "
        f"{many.median / steps * 1e6:.0f} µs after {long:,}."
    )


@torch.no_grad()
def _writing(position: int, steps: int) -> Callable[[], object]:
    mechanism = LinearAttention(HEADS, DIM, pattern=Causal())
    cache = mechanism.new_cache(
        layers=1, batch=1, num_kv_heads=HEADS, head_dim=DIM, dtype=torch.float32,
        device=torch.device("cpu"),
    )  # fmt: skip

    def step(first: int, count: int) -> None:
        tokens, x = Tokens.arange(first, first + count), torch.ones(1, HEADS, count, DIM)
        cache.advance(tokens)
        mechanism.step(x, x, x, cache=cache, layer=0, q_tokens=tokens)

    step(0, position)
    at = [position]

    @torch.no_grad()
    def work() -> object:
        for _ in range(steps):
            step(at[0], 1)
            at[0] += 1
        return cache

    return work
