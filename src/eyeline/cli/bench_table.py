"""The table of `eyeline bench`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eyeline.cli.output import console, data_size, duration, percent, table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from eyeline.measuring import Case, Sweep
    from eyeline.measuring.sweeping import Point


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
