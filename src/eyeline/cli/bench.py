"""`eyeline bench`: your own shape, each pattern and kernel against torch's SDPA."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eyeline.cli.figures import INK, QUIET, RULE, SERIES, bare, heading, store, styled
from eyeline.cli.options import AttentionDtype, Json, Plot, check_plot, read_patterns
from eyeline.cli.output import (
    Bar,
    console,
    data_size,
    duration,
    environment,
    percent,
    print_json,
    table,
)
from eyeline.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from rich.console import Console
    from rich.table import Table

    from eyeline.measuring import Case, Counted, Kind, Shape, Sweep
    from eyeline.measuring.sweeping import Point
    from eyeline.patterns import Pattern

DEFAULT_PATTERNS = ("sliding_window(256)", "streaming(256, 4)", "streaming(1024, 4)")
DEFAULT_LENGTHS = (512, 1024, 2048, 4096, 8192)


def bench(
    length: Annotated[
        list[int] | None, typer.Option("--length", min=1, help="In tokens. May be repeated.")
    ] = None,
    heads: Annotated[int, typer.Option(min=1, help="Query heads.")] = 8,
    dim: Annotated[int, typer.Option(min=1, help="The width of a head.")] = 64,
    kv_heads: Annotated[
        int | None, typer.Option(min=1, help="Key heads, if they are fewer (grouped heads).")
    ] = None,
    dtype: Annotated[
        AttentionDtype, typer.Option(help="The type computed in.")
    ] = AttentionDtype.float32,
    backward: Annotated[
        bool, typer.Option("--backward", help="Time the backward pass with the forward pass.")
    ] = False,
    pattern: Annotated[
        list[str] | None, typer.Option("--pattern", help="Who may look at whom. May be repeated.")
    ] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(
            "--backend", help="auto, decode, sdpa, short, tiles, flex, reference. May be repeated."
        ),
    ] = None,
    mechanism: Annotated[
        list[str] | None,
        typer.Option(
            "--mechanism",
            help="all, or a mechanism or layer such as linear(feature_map=favor), "
            "linformer(k=256), recurrent, under each --pattern. May be repeated.",
        ),
    ] = None,
    count_only: Annotated[
        bool, typer.Option("--count-only", help="Only the computed table; nothing is timed.")
    ] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each; medians are shown.")] = 5,
    memory: Annotated[bool, typer.Option(help="Measure peak memory at the longest length.")] = True,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """Time attention of your shape against torch's SDPA."""
    check_plot(plot)
    lengths = length if length else DEFAULT_LENGTHS
    kinds = _kinds(mechanism, pattern, lengths, count_only)
    if kinds and kv_heads not in (None, heads):
        raise InvalidArgument("--kv-heads with --mechanism: the table is that of equal heads")
    if count_only:
        _check_count_only(plot=plot is not None, backward=backward, backend=backend is not None)
    if backend and any(each.name != "exact" for each in kinds):
        raise InvalidArgument("--backend is for patterns; other mechanisms have one way each")
    sizes = {"length": max(lengths), "width": heads * dim, "heads": heads}
    rows = _counted(kinds, sizes)
    counts = {"counts": {**sizes, "rows": [asdict(row) for row in rows]}} if kinds else {}
    if count_only:
        print_json(counts) if as_json else show_counts(rows, **sizes)
        return
    default = pattern if pattern else DEFAULT_PATTERNS
    patterns = {} if kinds else _patterns(default)
    from eyeline.measuring import sweep

    shape = _shape(heads, dim=dim, kv_heads=kv_heads, dtype=dtype, backward=backward)
    backends = tuple(dict.fromkeys(backend)) if backend else ("auto",)
    with Bar("starting") as report:
        result = sweep(
            shape,
            lengths,
            patterns,
            backends=backends,
            kinds=kinds,
            rounds=rounds,
            memory=memory,
            progress=report,
        )
    if plot is not None:
        draw(result, plot)
    if as_json:
        print_json({**_answer(result), **counts})
        return
    if kinds:
        show_counts(rows, **sizes)
        typer.echo()
    show(result)


def _check_count_only(**given: bool) -> None:
    for name, asked in given.items():
        if asked:
            raise InvalidArgument(
                f"--{name} with --count-only: the table is of the forward pass, and nothing is run"
            )


def _kinds(
    texts: list[str] | None, patterns: list[str] | None, lengths: Sequence[int], count_only: bool
) -> list[Kind]:
    """What --mechanism asks for, under each pattern; what is asked twice stands once."""
    if not texts:
        if not count_only:
            return []
        texts = ["exact"] if patterns else ["all"]
    from eyeline.measuring import kind, standard

    found: list[Kind] = []
    for text in texts:
        if text.strip() == "all":
            if patterns:
                raise InvalidArgument("--mechanism all has its own patterns: leave out --pattern")
            found += standard(max(lengths), min(lengths))
        else:
            under = _patterns(patterns if patterns else ["full"])
            found += [kind(text, each, under=label) for label, each in under.items()]
    return list({each.label: each for each in found}.values())


def _counted(kinds: list[Kind], sizes: dict[str, int]) -> tuple[Counted, ...]:
    if not kinds:
        return ()
    from eyeline.measuring import count

    with Bar("counting") as report:
        return count(kinds, **sizes, progress=report)


def _patterns(texts: tuple[str, ...] | list[str]) -> dict[str, Pattern]:
    found = read_patterns(texts)
    for label, each in found.items():
        if each.single is None:
            raise InvalidArgument(f"--pattern {label!r}: bench has no layers; give one pattern")
    return {label: each.single for label, each in found.items() if each.single is not None}


def _shape(
    heads: int, *, dim: int, kv_heads: int | None, dtype: AttentionDtype, backward: bool
) -> Shape:
    import torch

    from eyeline.measuring import Shape

    return Shape(heads, dim, kv_heads, getattr(torch, dtype.value), backward)


def _answer(result: Sweep) -> dict[str, Any]:
    answer = asdict(result)
    answer["shape"]["dtype"] = str(result.shape.dtype).removeprefix("torch.")
    answer["shape"]["kv_heads"] = result.shape.groups
    answer["baseline_seconds"] = [
        {"length": length, "seconds": seconds}
        for length, seconds in result.baseline_seconds.items()
    ]
    answer["around_seconds"] = [
        {"length": length, **asdict(each)} for length, each in result.around_seconds.items()
    ]
    return {"baseline": "torch SDPA, causal", **answer, "environment": environment()}


# The table of `eyeline bench`.


def show(sweep: Sweep) -> None:
    """Prints SDPA's times by length, each case's with its speedup, and how to read that."""
    out = console()
    out.print(f"[bold]Attention[/bold], {sweep.shape.text}\n")
    out.print(_table(out, sweep))
    for line in _notes(sweep):
        out.print(line, style="dim")


def _table(out: Console, sweep: Sweep) -> Table:
    lengths = [f"{length:,}" for length in sweep.lengths]
    times = table(out, "pattern", *lengths, "memory", "faster from")
    baseline = sweep.baseline_seconds
    times.add_row(
        "torch SDPA, causal",
        *(duration(baseline[length]) for length in sweep.lengths),
        _memory(sweep.baseline_peak_bytes, sweep),
        "",
        end_section=True,
    )
    for case in sweep.cases:
        times.add_row(
            f"{case.label}\n[dim]{_kernels(case)}[/dim]",
            *(_point(point) for point in case.points),
            _memory(case.peak_bytes, sweep),
            crossing(case, sweep),
        )
    return times


def _kernels(case: Case) -> str:
    names = dict.fromkeys(point.kernel for point in case.points)
    return " then ".join(names)


def _point(point: Point) -> str:
    if point.seconds is None or point.speedup is None:
        too = [word for word in ("large", "slow") if str(point.refusal).startswith(f"too {word}")]
        return f"too {too[0]}" if too else "refused"
    style = "green" if point.speedup >= 1 else "red"
    return f"{duration(point.seconds)}\n[{style}]{point.speedup:.2g}×[/{style}]"


def _memory(peak: int | None, sweep: Sweep) -> str:
    if peak is None:
        return "—"
    return f"{data_size(peak)}\n{peak / sweep.input_bytes:.1f}×"


def crossing(case: Case, sweep: Sweep) -> str:
    """From which length on the case is faster than SDPA, in words."""
    if case.crossover is None:
        return f"none up to {sweep.lengths[-1]:,}"
    if case.crossover <= sweep.lengths[0]:
        return f"{sweep.lengths[0]:,} or less"
    return f"{case.crossover:,.0f}"


def _notes(sweep: Sweep) -> list[str]:
    notes = [
        f"Times: medians of {sweep.rounds} runs, by turns; below them how many times faster than "
        f"SDPA. memory: peak beyond inputs{', gradients' if sweep.shape.backward else ''} and "
        f"outputs at {sweep.lengths[-1]:,}, and as a multiple of the inputs."
    ]
    refused = {
        f"{case.label} by {case.backend}: {point.refusal}": None
        for case in sweep.cases
        for point in case.points[-1:]
        if point.refusal is not None
    }
    return notes + list(refused) + _shares(sweep)


def _shares(sweep: Sweep) -> list[str]:
    """Attention's share of a block's time, by length."""
    if not sweep.around_seconds:
        return []
    lines = [
        "Share of a block's time that is attention proper, without projections (heads · dim wide, "
        f"feed-forward four times as wide), at {', '.join(f'{n:,}' for n in sweep.lengths)}:"
    ]
    sdpa: list[float | None] = [
        sweep.baseline_seconds[n] / (sweep.baseline_seconds[n] + each.projections + each.rest)
        for n, each in sweep.around_seconds.items()
    ]
    rows = [("torch SDPA, causal", sdpa)]
    rows += [(case.label, [point.attention_share for point in case.points]) for case in sweep.cases]
    for label, shares in rows:
        told = ", ".join("—" if x is None else percent(x) for x in shares)
        lines.append(f"  {label}: {told}")
    return lines


# The computed table of `eyeline bench --mechanism`: nothing in it is measured.


def show_counts(rows: Sequence[Counted], *, length: int, width: int, heads: int) -> None:
    """Prints a line for each layer, and how to read it."""
    out = console()
    out.print(
        f"[bold]Counted[/bold], one layer, forward, {length:,} tokens, width {width:,}, "
        f"{heads} heads\n"
    )
    made = table(
        out, "layer", "multiplications", "computed", "projections", "in n", "in d", "steps", "path"
    )
    for row in rows:
        made.add_row(row.label, *_numbers(row))
    out.print(made)
    for line in _counts_notes(rows):
        out.print(line, style="dim")


def _numbers(row: Counted) -> list[str]:
    steps, path = (f"{x:,}" if x is not None else "?" for x in (row.steps, row.path))
    growth = (row.growth_in_length, row.growth_in_width)
    return [
        _short(row.multiplications),
        _short(row.computed),
        _short(row.projections) if row.projections != 0 else "—",
        *(f"{x:.2f}" if x is not None else "?" for x in growth),
        steps,
        path,
    ]


def _short(number: int | None) -> str:
    if number is None:
        return "?"
    size, prefix = float(number), ""
    for larger in ("k", "M", "G", "T", "P", "E"):
        if size < 999.5:
            break
        size, prefix = size / 1000, larger
    return f"{size:.3g} {prefix}".rstrip()


def _counts_notes(rows: Sequence[Counted]) -> list[str]:
    notes = [
        "multiplications: of its formula; computed: those made, with tiles, chunks and padding; "
        "projections: of queries, keys, values and output, apart. in n, in d: the exponent by "
        "which the multiplications grow when length, or width, doubles. steps: that must wait for "
        "each other. path: layers until all have heard of all they can, token reaches token "
        "(in a recurrent layer: its own steps). ?: a mechanism that does not say it."
    ]
    unknown = {f"path of {x.label}: {x.unknown}": None for x in rows if x.unknown}
    return notes + list(unknown)


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
            _memory_panel(figure.add_axes((0.74, low, 0.17, tall)), sweep)
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


def _memory_panel(axes: Axes, sweep: Sweep) -> None:
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
