"""The figure of `eyeline bench`: time by length, and memory at the longest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from eyeline.cli.bench_table import crossing
from eyeline.cli.figures import INK, QUIET, RULE, SERIES, bare, heading, store, styled
from eyeline.cli.output import data_size, duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from eyeline.measuring import Case, Sweep

_WIDTH, _WIDE, _HEIGHT = 11.0, 14.5, 5.2
# Inches of height that a line of the names takes, and of what is above and below the axes.
_LINE, _AROUND = 0.19, 1.9
# With more cases than these a name and its crossover share a line.
_FEW = 6
_BASELINE = "torch SDPA, causal"


def draw(sweep: Sweep, path: Path) -> None:
    """Draws the sweep into a file."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(styled()):
        height = max(_HEIGHT, 2 * _LINE * len(sweep.cases) + _AROUND)
        figure = Figure(figsize=(_WIDTH if len(sweep.cases) <= _FEW else _WIDE, height))
        low, tall = 0.68 / height, 1 - _AROUND / height
        heading(
            figure,
            "Attention and what stands in its place, against torch SDPA"
            if sweep.around_seconds
            else "Attention under patterns, against torch SDPA",
            f"{sweep.shape.text[:1].upper()}{sweep.shape.text[1:]}. Medians of {sweep.rounds} "
            "runs, by turns.",
        )
        measured = sweep.baseline_peak_bytes is not None
        wide = 0.47 if measured else 0.72
        _times(figure.add_axes((0.07, low, wide, tall)), sweep)
        if measured:
            _memory(figure.add_axes((0.74, low, 0.17, tall)), sweep)
        store(figure, path)


def _times(axes: Axes, sweep: Sweep) -> None:
    axes.set_title("Time", loc="left", fontweight="bold", fontsize=10.5, pad=12)
    baseline = list(sweep.baseline_seconds.items())
    axes.plot(*zip(*baseline, strict=True), color=INK, linewidth=2.2, marker="o", markersize=4)
    ends = [(baseline[-1][1], _BASELINE, INK)]
    for color, case in _coloured(sweep.cases):
        timed = [(p.length, p.seconds) for p in case.points if p.seconds is not None]
        if not timed:
            continue
        axes.plot(*zip(*timed, strict=True), color=color, linewidth=2.2, marker="o", markersize=4)
        ends.append((timed[-1][1], _end(case, sweep), color))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sweep.lengths, [f"{length:,}" for length in sweep.lengths])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda y, _: duration(y).replace(".0 ", " "))
    axes.grid(color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel("tokens", color=QUIET)
    bare(axes)
    _at_the_ends(axes, sweep.lengths[-1], ends)


def _end(case: Case, sweep: Sweep) -> str:
    """A case's name, and from which length on it is faster."""
    if len(sweep.cases) <= _FEW:
        return f"{_label(case)}\nfaster from {crossing(case, sweep)}"
    return _label(case) + (f": from {crossing(case, sweep)}" if case.crossover is not None else "")


def _at_the_ends(axes: Axes, x: int, ends: Sequence[tuple[float, str, str]]) -> None:
    """Names beside the lines' ends, moved apart where they would lie over each other."""
    import math

    low, high = (math.log(y) for y in axes.get_ylim())
    figure = axes.get_figure(root=True)
    assert figure is not None
    inches = axes.get_position().height * figure.get_figheight()
    ends = sorted(ends)
    gap = max(_LINE * (1 + text.count("\n")) for _, text, _ in ends) / inches * (high - low)
    places = [math.log(y) for y, _, _ in ends]
    for number in range(1, len(places)):
        places[number] = max(places[number], places[number - 1] + gap)
    places[-1] = min(places[-1], high)  # from there down, as far as they were pushed up too far
    for number in reversed(range(len(places) - 1)):
        places[number] = min(places[number], places[number + 1] - gap)
    for at, (y, text, color) in zip(places, ends, strict=True):
        axes.annotate(
            text, (x, y), (1.03, (at - low) / (high - low)), textcoords="axes fraction",
            color=color, fontsize=9, va="center", annotation_clip=False, linespacing=1.35,
        )  # fmt: skip


def _memory(axes: Axes, sweep: Sweep) -> None:
    length = sweep.lengths[-1]
    axes.set_title(
        f"Memory at {length:,} tokens", loc="left", fontweight="bold", fontsize=10.5, pad=12
    )
    bars = [(_BASELINE, sweep.baseline_peak_bytes, INK)]
    bars += [(_label(case), case.peak_bytes, color) for color, case in _coloured(sweep.cases)]
    shown = [(name, peak, color) for name, peak, color in bars if peak is not None]
    longest = max(1, *(peak for _, peak, _ in shown))
    for place, (name, peak, color) in enumerate(shown):
        axes.barh(place, peak, height=0.42, color=color)
        axes.text(
            longest * 0.03 + peak, place, data_size(peak), va="center", fontsize=9, color=color,
            fontweight="bold",
        )  # fmt: skip
        axes.text(0, place - 0.34, name, va="center", fontsize=8.5, color=QUIET)
    axes.set_ylim(len(shown) - 0.5, -0.65)
    axes.set_xlim(0, longest * 1.05)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_xlabel("peak beyond inputs and outputs", color=QUIET, loc="left")
    bare(axes, "left")


def _coloured(cases: Sequence[Case]) -> list[tuple[str, Case]]:
    return [(SERIES[place % len(SERIES)], case) for place, case in enumerate(cases)]


def _label(case: Case) -> str:
    own = case.backend == "auto" or case.label.startswith(case.backend)
    return case.label if own else f"{case.label}, {case.backend}"
