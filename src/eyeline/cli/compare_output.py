"""What `eyeline compare` shows: its tables, and the figure with a row for each pattern."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from eyeline.cli.figures import COST, INK, LOSS, QUIET, RULE, bare, heading, store, styled
from eyeline.cli.output import WIDE, console, data_size, duration, percent, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import Locator
    from rich.console import Console
    from rich.table import Table

    from eyeline.cli.compare import Title
    from eyeline.measuring import Comparison, Row

# The tables of `eyeline compare`.


def show(comparison: Comparison, title: Title) -> None:
    """Prints what each pattern costs, then what it loses, then how to read that."""
    out = console()
    out.print(
        f"[bold]{title.model}[/bold] ({title.dtype}) reads {comparison.length:,} tokens of "
        f"{title.text}\n"
    )
    out.print(_costs(out, comparison))
    wide = out.width >= WIDE
    out.print(_losses(out, comparison, recall=wide))
    if not wide and comparison.rows[0].recall:
        out.print(_found(out, comparison))
    for line in _notes(comparison):
        out.print(line, style="dim")


def _costs(out: Console, comparison: Comparison) -> Table:
    columns = ("pairs", "reading", "attention", "memory", "writing", "cache")
    costs = table(out, "pattern", *columns, title="What it costs")
    for row in comparison.rows:
        costs.add_row(
            row.label,
            percent(row.share),
            duration(row.read_seconds),
            percent(row.attention_share),
            data_size(row.peak_bytes),
            f"{row.tokens_per_second:.1f}/s",
            data_size(row.cache_bytes),
        )
    return costs


def _losses(out: Console, comparison: Comparison, *, recall: bool) -> Table:
    distances = list(comparison.rows[0].recall) if recall else []
    columns = ("perplexity", "change", *(f"{distance:,}" for distance in distances))
    losses = table(out, "pattern", *columns, title="What it loses")
    for row in comparison.rows:
        found = (_recall(row, distance) for distance in distances)
        losses.add_row(row.label, f"{row.perplexity:.2f}", _change(row), *found)
    return losses


def _found(out: Console, comparison: Comparison) -> Table:
    """Recall in a table of its own, for narrow terminals."""
    distances = list(comparison.rows[0].recall)
    columns = (f"{distance:,}" for distance in distances)
    found = table(out, "pattern", *columns, title="Facts still found")
    for row in comparison.rows:
        found.add_row(row.label, *(_recall(row, distance) for distance in distances))
    return found


def _change(row: Row) -> str:
    if row.change is None:
        return "—"
    low, high = (percent(x, sign=True)[:-2] for x in (row.change.low, row.change.high))
    return f"{percent(row.change.relative, sign=True)} ({low} to {high})"


def _recall(row: Row, distance: int) -> str:
    score = row.recall[distance]
    style = "green" if score.share >= 0.75 else "yellow" if score.share > 0.25 else "red"
    return f"[{style}]{score.found}/{score.asked}[/{style}]"


def _notes(comparison: Comparison) -> list[str]:
    row = comparison.rows[0]
    times = f"medians of {comparison.rounds} rounds, by turns" if comparison.rounds > 1 else "once"
    change = next((row.change for row in comparison.rows if row.change is not None), None)
    notes = [
        "pairs: of those that causal attention looks at. attention: its part of the reading time. "
        f"memory: peak beyond the weights. writing: after the text. Times: {times}.",
    ]
    if change is not None:
        notes.append(
            f"change: against causal, with its {percent(change.confidence)} interval (paired by "
            f"token, Student's t over {change.blocks} blocks of the text)."
        )
    if row.recall:
        notes.append(
            "50, 100, …: of the facts planted so many tokens ago, how many the model still writes "
            "down, digit for digit."
        )
    return notes


# In inches: the height of a row, what lies above and below the rows, the labels' column.
_ROW, _ABOVE, _BELOW, _LABELS, _WIDTH = 0.56, 1.42, 0.62, 2.15, 11.0


def draw(comparison: Comparison, title: Title, path: Path) -> None:
    """Draws the comparison into a file."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rows = comparison.rows
    with rc_context(styled()):
        figure = Figure(figsize=(_WIDTH, _ABOVE + _ROW * len(rows) + _BELOW))
        heading(
            figure,
            f"{title.model} reads {comparison.length:,} tokens under {len(rows)} patterns",
            f"{title.text[:1].upper()}{title.text[1:]}, {title.dtype}. Full causal attention is "
            "what the others are measured by.",
        )
        pairs, change, recall = _panels(figure, rows)
        _pairs(pairs, rows)
        _change_panel(change, rows)
        if recall is not None:
            _recall_panel(recall, rows)
        store(figure, path)


def _panels(figure: Figure, rows: Sequence[Row]) -> tuple[Axes, Axes, Axes | None]:
    """Axes side by side, with one row of each at the same height."""
    height = figure.get_figheight()
    bottom, tall = _BELOW / height, _ROW * len(rows) / height
    distances = len(rows[0].recall)
    widths = (2.5, 2.5, 3.0) if distances else (4.0, 4.2, 0.0)
    axes: list[Axes] = []
    left = _LABELS
    for width in widths:
        if width:
            axes.append(figure.add_axes((left / _WIDTH, bottom, width / _WIDTH, tall)))
        left += width + 0.3
    for each in axes:
        each.set_ylim(len(rows) - 0.5, -0.5)
        each.set_yticks([])
    labels = [fill(row.label, 24) for row in rows]
    size = 10.5 if all("\n" not in label for label in labels) else 8.5
    axes[0].set_yticks(range(len(rows)), labels, color=INK, fontsize=size)
    return axes[0], axes[1], axes[2] if distances else None


def _name(axes: Axes, title: str, below: str) -> None:
    axes.annotate(
        title, (0, 1), (0, 25), xycoords="axes fraction", textcoords="offset points",
        fontweight="bold", fontsize=10.5,
    )  # fmt: skip
    axes.annotate(
        below, (0, 1), (0, 11), xycoords="axes fraction", textcoords="offset points",
        color=QUIET, fontsize=8.5,
    )  # fmt: skip


def _pairs(axes: Axes, rows: Sequence[Row]) -> None:
    """How much is looked at, as bars; time and cache beside it."""
    _name(axes, "Pairs looked at", "share of what causal attention looks at")
    for place, row in enumerate(rows):
        axes.barh(place, 1.0, height=0.5, color=RULE)
        axes.barh(place, row.share, height=0.5, color=COST)
        inside = row.share > 0.3
        kept = f"read in {duration(row.read_seconds)}, cache {data_size(row.cache_bytes)}"
        axes.text(
            row.share + (-0.02 if inside else 0.02), place, percent(row.share),
            ha="right" if inside else "left", va="center",
            color="white" if inside else COST, fontweight="bold", fontsize=9.5,
        )  # fmt: skip
        axes.text(0, place + 0.38, kept, fontsize=8, color=QUIET, va="center")
    axes.set_xlim(0, 1)
    axes.set_xticks([])
    bare(axes)


def _change_panel(axes: Axes, rows: Sequence[Row]) -> None:
    """The change of the perplexity as dots with their intervals."""
    confidence = next((row.change.confidence for row in rows if row.change is not None), 0.95)
    _name(axes, "Perplexity", f"change against causal, with its {percent(confidence)} interval")
    reach = max(0.05, *(abs(x) for row in rows for x in _interval(row)))
    least = min(0.0, *(_interval(row)[0] for row in rows))
    axes.axvline(0, color=QUIET, linewidth=1)
    for place, row in enumerate(rows):
        if row.change is None:
            axes.plot(0, place, "o", color=QUIET, markersize=7)
            _beside(axes, (0.0, place), f"{row.perplexity:.1f}", color=QUIET, offset=(9, 0))
            continue
        axes.plot(
            _interval(row), (place, place), color=LOSS, linewidth=5, alpha=0.28,
            solid_capstyle="round",
        )  # fmt: skip
        axes.plot(row.change.relative, place, "o", color=LOSS, markersize=7)
        text = percent(row.change.relative, sign=True)
        _beside(axes, (row.change.relative, place), text, color=LOSS, offset=(0, 12))
    axes.set_xlim(least - 0.12 * reach, reach * 1.08)
    axes.xaxis.set_major_formatter(lambda x, _: percent(x, sign=x != 0) if x else "0")
    axes.xaxis.set_major_locator(_few())
    axes.grid(axis="x", color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8.5)
    bare(axes)


def _beside(
    axes: Axes, point: tuple[float, float], text: str, *, color: str, offset: tuple[int, int]
) -> None:
    """A number above a point, or to the right of it, that lines behind do not cross out."""
    from matplotlib.patheffects import withStroke

    axes.annotate(
        text, point, offset, textcoords="offset points", va="center",
        ha="left" if offset[0] else "center", fontsize=9, color=color, fontweight="bold",
        path_effects=[withStroke(linewidth=3, foreground="white")],
    )  # fmt: skip


def _few() -> Locator:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(4)


def _interval(row: Row) -> tuple[float, float]:
    return (0.0, 0.0) if row.change is None else (row.change.low, row.change.high)


def _recall_panel(axes: Axes, rows: Sequence[Row]) -> None:
    """What share of the facts is found at each distance: the darker the more."""
    from matplotlib.colors import LinearSegmentedColormap

    distances = list(rows[0].recall)
    _name(axes, "Facts still found", "planted so many tokens ago")
    shade = LinearSegmentedColormap.from_list("found", ["#f3f4f6", "#99d5cd", COST])
    for place, row in enumerate(rows):
        for column, distance in enumerate(distances):
            score = row.recall[distance]
            axes.barh(place, 0.92, left=column - 0.46, height=0.72, color=shade(score.share))
            axes.text(
                column, place, f"{score.found}/{score.asked}", ha="center", va="center",
                fontsize=9, color="white" if score.share > 0.6 else QUIET,
            )  # fmt: skip
    axes.set_xlim(-0.5, len(distances) - 0.5)
    axes.set_xticks(range(len(distances)), [f"{distance:,}" for distance in distances])
    axes.tick_params(labelsize=9)
    bare(axes)
