"""`bench`: one attention shape, several patterns and kernels, against torch's SDPA by length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from eyeline.dispatch import choose
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.functional.checks import make_request
from eyeline.measuring.peaks import peak_alone, peak_of
from eyeline.measuring.progress import Progress, Stages, silent
from eyeline.measuring.shapes import Shape, sdpa_causal, through
from eyeline.measuring.timing import by_turns, crossover
from eyeline.patterns import Pattern
from eyeline.planning import pairs
from eyeline.planning.heads import rules


@dataclass(frozen=True)
class Point:
    """One length: seconds (None where the kernel refuses, with its reason), against SDPA's.

    speedup: SDPA's seconds over these. pairs: how many the pattern looks at, per head; where heads
    differ, their mean.
    """

    length: int
    pairs: int
    kernel: str
    seconds: float | None
    speedup: float | None
    refusal: str | None = None


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
    """SDPA (causal) and the cases. baseline_seconds: by length. *_bytes: at the longest length."""

    shape: Shape
    lengths: tuple[int, ...]
    rounds: int
    baseline_seconds: Mapping[int, float]
    baseline_peak_bytes: int | None
    input_bytes: int
    cases: tuple[Case, ...]


class _Way(NamedTuple):
    """One pattern through one backend; what is timed against SDPA."""

    label: str
    pattern: Pattern
    backend: str


def sweep(
    shape: Shape,
    lengths: Sequence[int],
    patterns: Mapping[str, Pattern],
    *,
    backends: Sequence[str] = ("auto",),
    rounds: int = 5,
    memory: bool = True,
    progress: Progress = silent,
) -> Sweep:
    """Times every pattern through every backend at every length, by turns with SDPA's causal.

    patterns: by the labels they are shown under. memory: also measure peak memory, at the longest
    length, in processes of their own. A backend that refuses a call is not timed there.

    Raises InvalidArgument for lengths below 1 and backends that do not exist.
    """
    lengths = sorted(set(lengths))
    if not lengths or lengths[0] < 1:
        raise InvalidArgument(f"lengths={list(lengths)}: at least one, and each at least 1")
    ways = [_Way(label, p, backend) for label, p in patterns.items() for backend in backends]
    for way in ways:
        # At the shortest: a pattern that cannot be meant for it is refused before the work.
        _kernel(shape, shape.tensors(lengths[0]), way)
    stages = Stages(10 * len(lengths) + (2 * len(ways) + 4) * memory, progress)
    times = {}
    for length in lengths:
        with stages.stage(f"{length:,} tokens", 10) as within:
            times[length] = _at(shape, length, ways, rounds, within)
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
    )


def _at(
    shape: Shape, length: int, ways: Sequence[_Way], rounds: int, progress: Progress
) -> tuple[float, dict[_Way, Point]]:
    """SDPA's seconds and each way's point, at one length."""
    tensors = shape.tensors(length)
    kernels = {way: _kernel(shape, tensors, way) for way in ways}
    runs = {None: partial(shape.run, sdpa_causal, tensors)} | {
        way: partial(shape.run, through(way.pattern, way.backend), tensors)
        for way, (_, refusal) in kernels.items()
        if refusal is None
    }
    seconds = by_turns(runs, rounds=rounds, progress=progress)
    return seconds[None], {
        way: Point(
            length=length,
            pairs=_pairs(shape, length, way.pattern),
            kernel=kernel,
            seconds=seconds.get(way),
            speedup=seconds[None] / seconds[way] if way in seconds else None,
            refusal=refusal,
        )
        for way, (kernel, refusal) in kernels.items()
    }


def _pairs(shape: Shape, length: int, pattern: Pattern) -> int:
    looking = (count * pairs(rule, length) for rule, count in rules(pattern, shape.heads))
    return sum(looking) // shape.heads


def _kernel(
    shape: Shape, tensors: tuple[Tensor, Tensor, Tensor], way: _Way
) -> tuple[str, str | None]:
    """The kernel that serves a call, or the named one with its reason to refuse."""
    with torch.set_grad_enabled(shape.backward):
        request = make_request(*tensors, way.pattern, scale=None, q_tokens=None, k_tokens=None)
        try:
            return choose(request, way.backend).NAME, None
        except NotSupported as refusal:
            return way.backend, str(refusal)


def _peaks(
    shape: Shape, length: int, ways: Sequence[_Way], stages: Stages
) -> dict[_Way | None, int | None]:
    """Peak bytes beyond what is there anyway, of each way, and of SDPA under None."""
    with stages.stage("memory of the arrays alone", 2):
        alone = peak_alone(shape, length)
    found: dict[_Way | None, int | None] = {}
    for way in (None, *ways):
        with stages.stage(f"memory of {way.label if way is not None else 'SDPA'}", 2):
            text, backend = (str(way.pattern), way.backend) if way is not None else (None, "auto")
            peak = peak_of(shape, length, pattern=text, backend=backend)
        measured = peak is not None and alone is not None
        found[way] = max(peak - alone, 0) if measured else None  # type: ignore[operator]
    return found


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
