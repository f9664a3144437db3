"""Attention routed by content against the packages that do the same, and against SDPA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from eyeline import Causal
from eyeline.measuring.timing import Times, ratio, timed
from eyeline.mechanisms.routed.kmeans import KMeans
from eyeline.mechanisms.routed.lsh import LSH
from eyeline.mechanisms.routed.picking import TopK
from eyeline.mechanisms.routed.sinkhorn import Sinkhorn

from .harness import alternate
from .memory import Probe, peak_beyond
from .report import Report
from .routed_peers import Call, reformer, routing_transformer, sinkhorn_transformer
from .scaling import exponent
from .settings import Settings

HEADS, DIM, SIZE, HASHES, BEST = 8, 64, 64, 8, 32
SHORT, LONG = 8192, 32_768
LENGTHS = tuple(1 << power for power in range(9, 16))
SDPA, TOPK = "SDPA causal", f"TopK({BEST})"
FEW = f"{TOPK}, 2 heads"
Make = Callable[[int], Call]


@dataclass(frozen=True)
class Case:
    """Ours and a peer's, each made for a length; lengths: those at which the peer is measured.

    faster: how many times, at least; memory: the most of the peer's; growth: the most that four
    times the length may take.
    """

    ours: Make
    theirs: Make
    peer: str
    faster: float
    memory: float | None = None
    growth: float | None = None
    lengths: tuple[int, ...] = (SHORT, LONG)


def _lsh(n: int) -> Call:
    mechanism = LSH(SIZE, HASHES, pattern=Causal())
    return lambda q, k, v: mechanism(q, q, v)


def _kmeans(n: int) -> Call:
    return KMeans(n // SIZE, SIZE, num_heads=HEADS, head_dim=DIM, pattern=Causal())


def _sinkhorn(n: int) -> Call:
    return Sinkhorn(SIZE, num_kv_heads=HEADS, head_dim=DIM, pattern=Causal())


def _topk(n: int) -> Call:
    return TopK(BEST, pattern=Causal())


def _sdpa(n: int) -> Call:
    return lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True)


CASES = {
    f"LSH({SIZE}, {HASHES})": Case(
        _lsh, lambda n: reformer(SIZE, HASHES), "reformer-pytorch", 3.0, 0.5, 4.6
    ),
    f"KMeans, {SIZE} a cluster": Case(
        _kmeans, lambda n: routing_transformer(n // SIZE, SIZE, HEADS, DIM),
        "routing-transformer", 1.5,
    ),
    f"Sinkhorn({SIZE})": Case(
        _sinkhorn, lambda n: sinkhorn_transformer(SIZE, HEADS, DIM, n),
        "sinkhorn-transformer", 1.5,
    ),
}  # fmt: skip
OURS: dict[str, Make] = {name: case.ours for name, case in CASES.items()} | {TOPK: _topk}


def run(settings: Settings) -> None:
    report = Report(
        "routed",
        "Attention routed by content against its packages and SDPA, forward and backward, float32",
        settings,
        ["what", "tokens", "against", "ours ms", "its ms", "ours MiB", "its MiB"],
        {"batch": 1, "heads": HEADS, "width": DIM},
    )
    short, long = settings.size(SHORT, 512), settings.size(LONG, 1024)
    near = _times(report, short, OURS | _peers(SHORT) | {SDPA: _sdpa})
    far = _times(report, long, {name: OURS[name] for name in CASES} | _peers(LONG))
    for name, case in CASES.items():
        _against(report, name, case, short, near)
        if case.peer in far:
            _against(report, name, case, long, far)
        report.ratio(f"{name} at {short:,}: faster than {SDPA}", ratio(near[SDPA], near[name]), 1)
        grown = far[name].median / near[name].median
        report.most(f"{name}: time at {long:,} over {short:,}", grown, "×", case.growth)
    _best(report, near, short, long)
    _crossings(report, near, short)
    report.notes += NOTES
    report.finish()


def _peers(length: int) -> dict[str, Make]:
    """Those that are measured at this length."""
    return {case.peer: case.theirs for case in CASES.values() if length in case.lengths}


def _times(report: Report, length: int, makes: dict[str, Make]) -> dict[str, Times]:
    works = {name: timed(_step(make(length), length)) for name, make in makes.items()}
    times = alternate(works, rounds=report.settings.rounds, label=f"routed: {length:,}")
    report.keep(f"{length:,}", times)
    return times


def _against(report: Report, name: str, case: Case, length: int, times: dict[str, Times]) -> None:
    """A row about a mechanism and its package, and the figures."""
    ours, peer = times[name], times[case.peer]
    mib = [_peak(report, who, length) for who in (name, case.peer)]
    report.rows.append([name, length, case.peer, ours.median * 1e3, peer.median * 1e3, *mib])
    at = f"{name} at {length:,}"
    report.ratio(f"{at}: faster than {case.peer}", ratio(peer, ours), case.faster)
    if not report.settings.quick:
        report.most(f"{at}: memory over the peer's", mib[0] / mib[1], "×", case.memory)


def _best(report: Report, times: dict[str, Times], short: int, long: int) -> None:
    """The k best keys: all are scored, so the time is at least that of SDPA's scores."""
    taken = times[TOPK].median / times[SDPA].median
    report.most(f"{TOPK} at {short:,}: time over {SDPA}", taken, "×", 3.0)
    mib = [_peak(report, FEW, length) for length in (short, long)]
    growth = exponent([short, long], [max(found, 1.0) for found in mib])
    report.most(f"{FEW}: exponent of memory", growth, "", 1.1)
    for length, found in zip((short, long), mib, strict=True):
        report.rows.append([FEW, length, "", None, None, found, None])


def _crossings(report: Report, near: dict[str, Times], short: int) -> None:
    """The first of 512, 1,024, … 32,768 tokens at which each is faster than SDPA."""
    left, lengths = dict(OURS), [n for n in LENGTHS if n <= short or not report.settings.quick]
    for length in lengths:
        if length > short:  # all of whose pairs are scored: no faster there than before
            left.pop(TOPK, None)
        if not left:
            break
        times = near if length == short else _times(report, length, left | {SDPA: _sdpa})
        for name in list(left):
            taken = [times[who].median * 1e3 for who in (name, SDPA)]
            report.rows.append([name, length, SDPA, *taken, None, None])
            if taken[0] < taken[1]:
                del left[name]
                bar = None if name == TOPK else SHORT
                report.most(f"{name}: faster than {SDPA} from", length, "tokens", bar)


def _step(call: Call, length: int, heads: int = HEADS) -> Callable[[], object]:
    leaves, above = _leaves(length, heads), torch.ones(1, heads, length, DIM)
    learned = list(call.parameters()) if isinstance(call, nn.Module) else []

    def work() -> object:
        out = call(*leaves)
        return out, torch.autograd.grad(out, (*leaves, *learned), above, allow_unused=True)

    return work


def _leaves(length: int, heads: int) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(1, heads, length, DIM, requires_grad=True) for _ in range(3)]


def _peak(report: Report, who: str, length: int) -> float:
    return peak_beyond("routed", who, length=length, settings=report.settings) / 2**20


def probe(case: str, length: int) -> Probe:
    """For the peak of memory: the same step in a process of its own."""
    make, heads = (OURS | _peers(SHORT) | {FEW: _topk})[case], 2 if case == FEW else HEADS

    def arrays() -> object:
        call, leaves = make(length), _leaves(length, heads)
        learned = list(call.parameters()) if isinstance(call, nn.Module) else []
        return leaves, [torch.ones_like(x) for x in (*leaves, *learned, *leaves[:2])]

    return Probe(
        warm=lambda: _step(make(512), 512, heads)(),
        arrays=arrays,
        work=lambda: _step(make(length), length, heads)(),
    )


NOTES = [
    "MiB: peak resident size beyond inputs, outputs and gradients, in a fresh process.",
    "reformer-pytorch: LSHAttention, causal, buckets of 64, 8 rounds; rotations are drawn anew in "
    "each call, to n/64 buckets at once.",
    "routing-transformer: KmeansAttention, causal, n/64 clusters of 64, training: both move their "
    "means in each step. A query in several clusters gets the mean of what it sees there, ours one "
    "softmax; the peer has one more key and value for each cluster.",
    "sinkhorn-transformer: the causal attention of its layer, blocks of 64, not balanced: a block "
    "takes the best of those before it, scaled by its share; half of the heads are shifted.",
    "against SDPA causal: the first length of 512, 1,024, … at which the mechanism is faster; "
    "TopK scores all pairs, and is not measured beyond 8,192.",
]
