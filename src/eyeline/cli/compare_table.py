"""The tables of `eyeline compare`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eyeline.cli.output import WIDE, console, data_size, duration, percent, table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from eyeline.cli.compare import Title
    from eyeline.measuring import Comparison, Row


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
