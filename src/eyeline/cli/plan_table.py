"""The picture and the table of `eyeline plan`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from eyeline.cli.output import console, counted, data_size, share

if TYPE_CHECKING:
    from rich.table import Table

    from eyeline.cli.plan_report import Report

_UNITS = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))


def show(found: Report) -> None:
    """Prints the pattern, its picture, what it costs, and the kernels' answers."""
    from rich.text import Text

    out = console()
    out.print(Text(str(found.asked.pattern), style="bold"))
    for line in _about(found):
        out.print(line, style="dim")
    drawn = "".join(f"  {line}\n" for line in found.picture.text().splitlines())
    out.print(Text(f"\n{drawn}", style="cyan", no_wrap=True))
    out.print(_facts(_numbers(found)))
    out.print(_facts(_answers(found)))


def _about(found: Report) -> Iterator[str]:
    asked, cell = found.asked, found.picture.cell
    head = f" · head {asked.shown_head} of {asked.heads}" if asked.shown_head is not None else ""
    queries = counted(asked.queries, "query", "queries")
    yield f"{queries} (down) × {counted(asked.keys, 'key', 'keys')} (across){head}"
    if cell > 1:
        sampled = "" if bool(found.picture.exact.all()) else "; shares of some are estimates"
        yield f"a cell is {cell:,} × {cell:,} pairs: ░▒▓ some of them allowed, █ all{sampled}"


def _numbers(found: Report) -> Iterator[tuple[str, str, str]]:
    asked, cost = found.asked, found.cost
    part = share(found.pairs, asked.queries * asked.keys)
    yield "pairs", f"{found.pairs:,}", f"a head; {part} of all"
    yield "computed", f"{found.plan.area:,}", f"in tiles of {found.plan.tile}: {_parts(found)}"
    way = "forward and backward" if asked.backward else "forward"
    name = str(asked.dtype).removeprefix("torch.")
    yield (
        "work",
        f"{_amount(cost.flops)}FLOP",
        f"{way}, {counted(asked.heads, 'head', 'heads')} of {asked.dim}",
    )
    ratio = cost.dense_flops / cost.flops if cost.flops else 0.0
    yield "", f"1/{ratio:,.{0 if ratio >= 10 else 1}f}" if ratio else "—", "of full attention's"
    yield "memory", data_size(cost.bytes), f"{name}, read and written"
    yield "steps", f"{cost.steps:,}", "one after another"
    yield "longest path", *_path(found)
    yield "cache", *_cache(found)


def _parts(found: Report) -> str:
    words = []
    for name, (count, _) in found.parts.items():
        words.append(counted(count, name, name if name.endswith("gathered") else f"{name}s"))
    return ", ".join(words) if words else "nothing"


def _path(found: Report) -> tuple[str, str]:
    if isinstance(found.path, str):
        return "—", found.path
    word = "layer" if found.path == 1 else "layers"
    return f"{found.path:,}", f"{word} until each has heard of all it ever can"


def _cache(found: Report) -> tuple[str, str]:
    kept = found.cache
    if kept.keys is None:
        return "—", kept.refusal if kept.refusal is not None else ""
    read = counted(found.asked.keys, "token", "tokens")
    return counted(kept.keys, "key", "keys"), f"{data_size(kept.bytes)}, after {read}"


def _answers(found: Report) -> Iterator[tuple[str, str, str]]:
    title = "kernel"
    for name, said in sorted(found.kernels.items(), key=lambda each: each[1] != "chosen"):
        yield title, name, said
        title = ""


def _facts(rows: Iterator[tuple[str, str, str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(min_width=12, style="bold")
    made.add_column(justify="right", no_wrap=True, min_width=15)
    made.add_column(style="dim", overflow="fold")
    for row in rows:
        made.add_row(*map(Text, row))
    return made


def _amount(count: int) -> str:
    """65,500,000,000 → "65.5 G"."""
    for unit, size in _UNITS:
        if count >= size:
            return f"{count / size:,.{0 if count >= 100 * size else 1}f} {unit}"
    return f"{count} "
