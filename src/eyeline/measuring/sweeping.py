"""`bench`: one attention shape, several patterns and kernels, against torch's SDPA by length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from eyeline.checks import check_size
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.exact.call import make_request
from eyeline.exact.dispatch import choose
from eyeline.layers import FeedForward
from eyeline.measuring.kinds import Kind
from eyeline.measuring.peaks import peak_alone, peak_of
from eyeline.measuring.shapes import Attend, Shape, sdpa_causal, through
from eyeline.measuring.timing import Progress, Stages, by_turns, crossover, silent
from eyeline.patterns import Pattern
from eyeline.planning import pairs
from eyeline.planning.dense import installed
from eyeline.planning.peeling import rules

# What stands around attention in a block: how long projections, feed-forward and norms take.


@dataclass(frozen=True)
class Around:
    """Seconds of a block, beside attention proper: of its four projections, and of the rest."""

    projections: float
    rest: float


def around(shape: Shape, length: int, *, rounds: int) -> Around:
    """Of a block as wide as the heads together, whose feed-forward is four times as wide.

    Medians, by turns; with the shape's backward pass, if it has one.
    """
    width, kv_width = shape.heads * shape.dim, shape.groups * shape.dim
    outward = (width, kv_width, kv_width, width)
    projections = _Side([nn.Linear(width, out) for out in outward])
    norms = [nn.LayerNorm(width), nn.LayerNorm(width)]
    rest = _Side([*norms, FeedForward(width, 4 * width, activation="gelu")])
    x = torch.randn(1, length, width, dtype=shape.dtype, requires_grad=shape.backward)
    runs = {
        name: partial(shape.run, module.to(shape.dtype), (x,))
        for name, module in (("projections", projections), ("rest", rest))
    }
    return Around(**by_turns(runs, rounds=rounds))


class _Side(nn.Module):
    """Layers side by side on one input, whose outputs are all needed."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([layer(x) for layer in self.layers], -1)


# Seconds of one run after which a case is not run at longer lengths.
_PATIENCE = 10.0


@dataclass(frozen=True)
class Point:
    """One length: seconds (None where the kernel refuses, with its reason), against SDPA's.

    speedup: SDPA's seconds over these. pairs: how many the pattern looks at, per head; where heads
    differ, their mean; None: not known. attention_share: of a block's time, see ``around``; None:
    not measured.
    """

    length: int
    pairs: int | None
    kernel: str
    seconds: float | None
    speedup: float | None
    refusal: str | None = None
    attention_share: float | None = None


@dataclass(frozen=True)
class Case:
    """One pattern through one backend, at every length.

    peak_bytes: beyond inputs, outputs and gradients, at the longest length; None: not measured.
    crossover: the length from which on it is faster than SDPA; None: not up to the longest.
    """

    label: str
    backend: str
    points: tuple[Point, ...]
    peak_bytes: int | None
    crossover: float | None


@dataclass(frozen=True)
class Sweep:
    """SDPA (causal) and the cases. baseline_seconds: by length. *_bytes: at the longest length.

    around_seconds: by length, of what stands around attention in a block; empty: not measured.
    """

    shape: Shape
    lengths: tuple[int, ...]
    rounds: int
    baseline_seconds: Mapping[int, float]
    baseline_peak_bytes: int | None
    input_bytes: int
    cases: tuple[Case, ...]
    around_seconds: Mapping[int, Around] = field(default_factory=dict)


class _Way(NamedTuple):
    """One pattern through one backend, or a mechanism or layer; what is timed against SDPA."""

    label: str
    pattern: Pattern
    backend: str
    kind: Kind | None = None


def sweep(
    shape: Shape,
    lengths: Sequence[int],
    patterns: Mapping[str, Pattern],
    *,
    backends: Sequence[str] = ("auto",),
    kinds: Sequence[Kind] = (),
    rounds: int = 5,
    memory: bool = True,
    progress: Progress = silent,
) -> Sweep:
    """Times every pattern through every backend at every length, by turns with SDPA's causal.

    patterns: by the labels they are shown under. memory: also measure peak memory, at the longest
    length, in processes of their own. A backend that refuses a call is not timed there.
    kinds: mechanisms and layers, timed like patterns; a layer that has no heads is given the
    query's as one token. With them, what stands around attention in a block is timed too. One that
    would hold more than a quarter of the machine's memory in something of length² is too large,
    and one that took over ten seconds is not run at longer lengths.

    Raises InvalidArgument for lengths below 1 and backends that do not exist.
    """
    lengths = sorted(set(lengths))
    if not lengths:
        raise InvalidArgument("lengths=[]: at least one is timed")
    check_size("length", lengths[0])
    ways = [_Way(label, p, backend) for label, p in patterns.items() for backend in backends]
    # Exact attention with its usual options, through each kernel that is asked for.
    exact = [x for x in kinds if x.name == "exact" and not x.options]
    ways += [_Way(each.label, each.pattern, backend) for each in exact for backend in backends]
    ways += [_Way(x.label, x.pattern, x.name, x) for x in kinds if x not in exact]
    for way in ways:
        # At the shortest: a pattern that cannot be meant for it is refused before the work.
        _kernel(shape, shape.tensors(lengths[0]), way)
    stages = Stages(10 * len(lengths) + (2 * len(ways) + 4) * memory, progress)
    times: dict[int, tuple[float, dict[_Way, Point]]] = {}
    aside: dict[int, Around] = {}
    slow: dict[_Way, str] = {}
    for length in lengths:
        with stages.stage(f"{length:,} tokens", 10) as within:
            if kinds:
                aside[length] = around(shape, length, rounds=rounds)
            times[length] = _at(shape, length, ways, rounds, within, aside.get(length), slow)
        for way, point in times[length][1].items():
            if point.seconds is not None and point.seconds > _PATIENCE:
                slow[way] = f"too slow: {point.seconds:.0f} s at {length:,} tokens"
    served = [way for way in ways if times[lengths[-1]][1][way].seconds is not None]
    peaks = _peaks(shape, lengths[-1], served, stages) if memory else {}
    return Sweep(
        shape=shape,
        lengths=tuple(lengths),
        rounds=rounds,
        baseline_seconds={length: baseline for length, (baseline, _) in times.items()},
        baseline_peak_bytes=peaks.get(None),
        input_bytes=sum(x.nbytes for x in shape.tensors(lengths[-1])),
        cases=tuple(
            _case(way, [points[way] for _, points in times.values()], peaks.get(way))
            for way in ways
        ),
        around_seconds=aside,
    )


def _at(
    shape: Shape,
    length: int,
    ways: Sequence[_Way],
    rounds: int,
    progress: Progress,
    aside: Around | None,
    slow: Mapping[_Way, str],
) -> tuple[float, dict[_Way, Point]]:
    """SDPA's seconds and each way's point, at one length."""
    tensors = shape.tensors(length)
    kernels = {
        way: (way.backend, slow[way]) if way in slow else _kernel(shape, tensors, way)
        for way in ways
    }
    runs = {None: partial(shape.run, sdpa_causal, tensors)} | {
        way: partial(shape.run, _attend(shape, length, way), tensors)
        for way, (_, refusal) in kernels.items()
        if refusal is None
    }
    seconds = by_turns(runs, rounds=rounds, progress=progress)
    return seconds[None], {
        way: Point(
            length=length,
            pairs=_pairs(shape, length, way),
            kernel=kernel,
            seconds=seconds.get(way),
            speedup=seconds[None] / seconds[way] if way in seconds else None,
            refusal=refusal,
            attention_share=_share(way, seconds.get(way), aside),
        )
        for way, (kernel, refusal) in kernels.items()
    }


def _attend(shape: Shape, length: int, way: _Way) -> Attend:
    if way.kind is None:
        return through(way.pattern, way.backend)
    return way.kind.call(shape.groups_of_heads, length, dtype=shape.dtype)


def _share(way: _Way, seconds: float | None, aside: Around | None) -> float | None:
    """Of a block's time; a layer that is no attention has no projections beside it."""
    if seconds is None or aside is None:
        return None
    projected = way.kind is None or way.kind.has_heads
    return seconds / (seconds + aside.rest + (aside.projections if projected else 0.0))


def _pairs(shape: Shape, length: int, way: _Way) -> int | None:
    if way.kind is not None:
        work = way.kind.work(length, shape.heads * shape.dim, shape.heads)
        return work.pairs // work.call.heads if work is not None else None
    looking = (count * pairs(rule, length) for rule, count in rules(way.pattern, shape.heads))
    return sum(looking) // shape.heads


def _kernel(
    shape: Shape, tensors: tuple[Tensor, Tensor, Tensor], way: _Way
) -> tuple[str, str | None]:
    """The kernel that serves a call, or the named one with its reason to refuse."""
    if way.kind is not None:
        return way.backend, _too_large(shape, tensors[0].shape[2], way.kind)
    with torch.set_grad_enabled(shape.backward):
        request = make_request(*tensors, way.pattern, scale=None, q_tokens=None, k_tokens=None)
        try:
            return choose(request, way.backend).NAME, None
        except NotSupported as refusal:
            return way.backend, str(refusal)


def _too_large(shape: Shape, length: int, kind: Kind) -> str | None:
    there = installed()
    needed = kind.square_bytes(length, shape.groups_of_heads, backward=shape.backward)
    if there is None or needed <= there / 4:
        return None
    return f"too large: it would hold {needed / 1e9:,.0f} GB at {length:,} tokens"


def _peaks(
    shape: Shape, length: int, ways: Sequence[_Way], stages: Stages
) -> dict[_Way | None, int | None]:
    """Peak bytes beyond what is there anyway, of each way, and of SDPA under None."""
    with stages.stage("memory of the arrays alone", 2):
        alone = peak_alone(shape, length)
    found: dict[_Way | None, int | None] = {}
    for way in (None, *ways):
        with stages.stage(f"memory of {way.label if way is not None else 'SDPA'}", 2):
            peak = _peak(shape, length, way)
        measured = peak is not None and alone is not None
        found[way] = max(peak - alone, 0) if measured else None  # type: ignore[operator]
    return found


def _peak(shape: Shape, length: int, way: _Way | None) -> int | None:
    if way is None:
        return peak_of(shape, length, pattern=None)
    text = str(way.pattern)
    if way.kind is None:
        return peak_of(shape, length, pattern=text, backend=way.backend)
    return peak_of(shape, length, pattern=text, mechanism=way.kind.text)


def _case(way: _Way, points: Sequence[Point], peak: int | None) -> Case:
    timed = [(point.length, point.speedup) for point in points if point.speedup is not None]
    lengths, speedups = [length for length, _ in timed], [speedup for _, speedup in timed]
    return Case(
        label=way.label,
        backend=way.backend,
        points=tuple(points),
        peak_bytes=peak,
        crossover=crossover(lengths, speedups) if timed else None,
    )
