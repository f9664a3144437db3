"""The computed table of `eyeline bench --mechanism`: nothing in it is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eyeline.cli.output import console, table

if TYPE_CHECKING:
    from eyeline.measuring import Counted, Counts


def show(counts: Counts) -> None:
    """Prints a line for each layer, and how to read it."""
    out = console()
    out.print(
        f"[bold]Counted[/bold], one layer, forward, {counts.length:,} tokens, width "
        f"{counts.width:,}, {counts.heads} heads\n"
    )
    made = table(
        out, "layer", "multiplications", "computed", "projections", "in n", "in d", "steps", "path"
    )
    for row in counts.rows:
        made.add_row(row.label, *_numbers(row))
    out.print(made)
    for line in _notes(counts):
        out.print(line, style="dim")


def _numbers(row: Counted) -> list[str]:
    return [
        _short(row.multiplications),
        _short(row.computed),
        _short(row.projections) if row.projections else "—",
        f"{row.growth_in_length:.2f}",
        f"{row.growth_in_width:.2f}",
        f"{row.steps:,}",
        f"{row.path:,}" if row.path is not None else "?",
    ]


def _short(number: int) -> str:
    size, prefix = float(number), ""
    for larger in ("k", "M", "G", "T", "P", "E"):
        if size < 999.5:
            break
        size, prefix = size / 1000, larger
    return f"{size:.3g} {prefix}".rstrip()


def _notes(counts: Counts) -> list[str]:
    notes = [
        "multiplications: of its formula; computed: those made, with tiles, chunks and padding; "
        "projections: of queries, keys, values and output, apart. in n, in d: the exponent by "
        "which the multiplications grow when length, or width, doubles. steps: that must wait for "
        "each other. path: layers until all have heard of all they can, token reaches token "
        "(in a recurrent layer: its own steps)."
    ]
    unknown = {f"path of {x.label}: {x.unknown}": None for x in counts.rows if x.unknown}
    return notes + list(unknown)
