"""`eyeline compare`: one text read under several patterns; what each costs, what each loses."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from eyeline.cli.figures import COST, INK, LOSS, QUIET, RULE, bare, heading, store, styled
from eyeline.cli.options import (
    PATTERN_HELP,
    Json,
    ModelDtype,
    PatternText,
    Plot,
    check_plot,
    read_patterns,
)
from eyeline.cli.output import (
    WIDE,
    Bar,
    Ready,
    console,
    data_size,
    duration,
    environment,
    load_model,
    percent,
    print_json,
    table,
)
from eyeline.errors import InvalidArgument
from eyeline.reading import read_file, read_stdin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import Locator
    from rich.console import Console
    from rich.table import Table

    from eyeline.measuring import Comparison, Row
    from eyeline.patterns import Pattern
    from eyeline.tokenizer import AnyTokenizer

LENGTH = 2048
DEFAULT_PATTERNS = ("streaming(512, 4)", "sliding_window(512)", "streaming(128, 4)")


def compare(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="A name (see eyeline models), a file or a folder."),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(
            "--text", metavar="FILE", help="Read this (- is stdin), or Python's own reference."
        ),
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(min=1, help=f"Read this many tokens; {LENGTH:,} if the model has room."),
    ] = None,
    pattern: Annotated[
        list[str] | None, typer.Option("--pattern", help=f"{PATTERN_HELP} May be repeated.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Read so often; medians are shown.")] = 3,
    dtype: Annotated[ModelDtype, typer.Option(help="The type of the weights.")] = ModelDtype.auto,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """Read a text under patterns: what each costs and loses."""
    check_plot(plot)
    asked = read_patterns(pattern if pattern else DEFAULT_PATTERNS)
    source = _text(text)
    comparison, ready = _measure(
        source, asked, model=model, length=length, rounds=rounds, dtype=dtype
    )
    title = Title(ready.name, ready.dtype, source.name)
    if plot is not None:
        draw(comparison, title, plot)
    if as_json:
        print_json(_answer(comparison, ready, source))
    else:
        show(comparison, title)


class Text(NamedTuple):
    """What is read, and how to call it."""

    name: str
    text: str


class Title(NamedTuple):
    """What was compared, in words."""

    model: str
    dtype: str
    text: str


def _measure(
    source: Text,
    asked: dict[str, PatternText],
    *,
    model: str | None,
    length: int | None,
    rounds: int,
    dtype: ModelDtype,
) -> tuple[Comparison, Ready]:
    from eyeline.measuring import compare as measure
    from eyeline.measuring.comparison import refuse_looking_ahead, room

    for each in asked.values():
        if each.single is not None:  # before a model is loaded for nothing
            wanted = length if length is not None else LENGTH
            refuse_looking_ahead(each.label, each.single, wanted)
    ready = load_model(model, dtype=dtype)
    if length is None:
        most = room(ready.model)
        length = LENGTH if most is None else min(LENGTH, most)
    ids = _ids(ready.tokenizer, source, length)
    patterns: dict[str, Pattern | list[Pattern]] = {
        label: each.of_layers(ready.model.config.layers) for label, each in asked.items()
    }
    with Bar("warming up") as report:
        comparison = measure(
            ready.model, ids, patterns, tokenizer=ready.tokenizer, rounds=rounds, progress=report
        )
    return comparison, ready


def _text(path: Path | None) -> Text:
    if path is None:
        import platform
        from pydoc_data import topics

        python = ".".join(platform.python_version_tuple()[:2])
        pieces = (topics.topics[name] for name in sorted(topics.topics))
        return Text(f"the language reference of Python {python}", "\n".join(pieces))
    if str(path) == "-":
        return Text("stdin", read_stdin())
    return Text(path.name, read_file(path, f"--text {path}"))


def _ids(tokenizer: AnyTokenizer, source: Text, length: int) -> list[int]:
    """The first ``length`` tokens, begun as the model wants it; control tokens are plain text."""
    ids = [tokenizer.bos_id] if tokenizer.encode("") and tokenizer.bos_id is not None else []
    # Most texts have four characters to a token: all of a long one need not be cut up.
    for characters in (16 * length, len(source.text)):
        found = ids + tokenizer.encode(source.text[:characters], special=False)
        if len(found) > length:
            break
    if len(found) < length:
        raise InvalidArgument(
            f"{source.name} has {len(found):,} tokens, and --length asks for {length:,}; give a "
            f"longer text, or --length {len(found)}"
        )
    return found[:length]


def _answer(comparison: Comparison, ready: Ready, source: Text) -> dict[str, Any]:
    return {
        "model": ready.name,
        "source": str(ready.source),
        "dtype": ready.dtype,
        "text": source.name,
        "length": comparison.length,
        "rounds": comparison.rounds,
        "rows": [_row(row) for row in comparison.rows],
        "environment": environment(),
    }


def _row(row: Row) -> dict[str, Any]:
    recall = [
        {"distance": distance, "found": score.found, "asked": score.asked}
        for distance, score in row.recall.items()
    ]
    return {**asdict(row), "recall": recall}


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
