"""`eyeline plan`: a pattern at a length, its picture, what it costs, and how it is computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eyeline.cli.figures import INK, PAPER, QUIET, RULE, bare, heading, store, styled
from eyeline.cli.options import AttentionDtype, Json, check_plot, read_pattern
from eyeline.cli.output import Bar, console, counted, data_size, print_json, share
from eyeline.errors import InvalidArgument

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table

    from eyeline.cli.plan_report import Asked, Report
    from eyeline.patterns import Pattern
    from eyeline.planning.pictures import Picture

# Cells along the longer side of a figure.
_FINE = 160


def plan(
    pattern: Annotated[
        str,
        typer.Argument(
            metavar="PATTERN", help='Who may look at whom, such as "streaming(512, 4)".'
        ),
    ],
    length: Annotated[int, typer.Option(min=1, help="How many queries, in tokens.")] = 1024,
    key_length: Annotated[
        int | None,
        typer.Option(min=1, help="How many keys; the queries are the last of them. [as many]"),
    ] = None,
    heads: Annotated[int, typer.Option(min=1, help="Heads, each with its own keys.")] = 1,
    dim: Annotated[int, typer.Option(min=1, help="The width of a head.")] = 64,
    dtype: Annotated[
        AttentionDtype, typer.Option(help="The type computed in.")
    ] = AttentionDtype.float32,
    backward: Annotated[
        bool, typer.Option("--backward", help="Count the backward pass with the forward pass.")
    ] = False,
    head: Annotated[
        int | None,
        typer.Option(min=0, help="Which head to show where heads differ, counted from 0."),
    ] = None,
    as_json: Json = False,
    image: Annotated[
        Path | None,
        typer.Option("--image", metavar="FILE.png|svg", help="Draw the picture into this file."),
    ] = None,
) -> None:
    """Show a pattern at a length: picture, cost, kernel."""
    check_plot(image, option="--image")
    rule = _single(pattern)
    from eyeline.cli.plan_report import Asked, report

    keys = key_length if key_length is not None else length
    asked = Asked.of(
        rule, length, keys, heads=heads, dim=dim, dtype=dtype.value, backward=backward, head=head
    )
    with Bar("planning") as progress:
        found = report(asked, progress=progress)
        if image is not None:
            _draw(asked, found.pairs, image)
    if as_json:
        from eyeline.cli.plan_report import answer

        print_json(answer(found))
    else:
        show(found)


def _single(text: str) -> Pattern:
    read = read_pattern(text)
    if read.single is None:
        raise InvalidArgument(f"{read.label!r}: plan has no layers; give one pattern")
    return read.single


def _draw(asked: Asked, pairs: int, path: Path) -> None:
    from eyeline.planning.pictures import picture

    made = picture(asked.shown, asked.queries, asked.keys, cells=_FINE)
    draw(made, str(asked.pattern), path, pairs=pairs, head=asked.shown_head)


# The picture and the table of `eyeline plan`.


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


_NONE, _FEW, _ALL = "#eef1f4", "#c3e3de", "#0b6b63"
# Up to this many cells on a side stand apart.
_APART = 80
# In inches: the picture's longer side, its margins, a gallery's panels and columns.
_SIDE, _LEFT, _RIGHT, _ABOVE, _BELOW = 6.0, 1.2, 0.5, 1.35, 0.85
_MARGIN, _PANEL, _GAP, _COLUMNS = 0.22, 2.55, 0.3, 4
_SCALE = ((1e-4, "0.01 %"), (1e-2, "1 %"), (0.25, "25 %"))


def draw(
    picture: Picture, title: str, path: Path, *, pairs: int | None = None, head: int | None = None
) -> None:
    """Draws one picture into a file. pairs, head: told below the title."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    longest = max(picture.queries, picture.keys, 1)
    wide, tall = (max(_SIDE * size / longest, 0.4) for size in (picture.keys, picture.queries))
    lines = wrap(title, 52)
    above = _ABOVE + 0.24 * (len(lines) - 1)
    width, height = max(wide, _SIDE) + _LEFT + _RIGHT, tall + above + _BELOW
    with rc_context(styled()):
        figure = Figure(figsize=(width, height))
        figure.text(
            _MARGIN / width, 1 - 0.22 / height, "\n".join(lines),
            fontsize=13, fontweight="bold", va="top", linespacing=1.25,
        )  # fmt: skip
        below = 1 - (0.56 + 0.24 * (len(lines) - 1)) / height
        about = _about_figure(picture, pairs, head)
        figure.text(_MARGIN / width, below, about, fontsize=9.5, color=QUIET, va="top")
        axes = figure.add_axes((_LEFT / width, _BELOW / height, wide / width, tall / height))
        _cells(axes, picture)
        _scales(axes, picture)
        _legend(figure, picture)
        store(figure, path, option="--image")


def draw_gallery(
    pictures: Mapping[str, tuple[str, Picture]], path: Path, *, title: str = "Who may look at whom"
) -> None:
    """Draws pictures side by side: a name for each, with its text and picture."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rows = -(-len(pictures) // _COLUMNS)
    width = 2 * _MARGIN + _COLUMNS * _PANEL + (_COLUMNS - 1) * _GAP
    step, above = _PANEL + 0.8, 1.4
    height = above + rows * step - 0.5
    with rc_context(styled()):
        figure = Figure(figsize=(width, height))
        heading(figure, title, _gallery_about(pictures))
        for place, (name, (text, picture)) in enumerate(pictures.items()):
            left = _MARGIN + place % _COLUMNS * (_PANEL + _GAP)
            bottom = height - above - place // _COLUMNS * step - _PANEL
            axes = figure.add_axes((left / width, bottom / height, _PANEL / width, _PANEL / height))
            _cells(axes, picture)
            _named(axes, name, text)
        store(figure, path, option="--image")


def _gallery_about(pictures: Mapping[str, tuple[str, Picture]]) -> str:
    sizes = {(picture.queries, picture.keys) for _, picture in pictures.values()}
    counts = " or ".join(f"{queries:,} queries and {keys:,} keys" for queries, keys in sizes)
    return (
        f"{counts}: each row is a query, each column a key. A dark cell: this query may look at "
        "this key."
    )


def _named(axes: Axes, name: str, text: str) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    lines = wrap(text, 46)
    axes.annotate(
        name, (0, 1), (0, 8 + 9 * len(lines)), xycoords="axes fraction",
        textcoords="offset points", fontweight="bold", fontsize=10.5,
    )  # fmt: skip
    axes.annotate(
        "\n".join(lines), (0, 1), (0, 6), xycoords="axes fraction", textcoords="offset points",
        fontsize=7.5, color=QUIET, linespacing=1.15,
    )  # fmt: skip


def _cells(axes: Axes, picture: Picture) -> None:
    """The cells in their colours; where there are few, with gaps between them."""
    rows, columns = picture.kinds.shape
    ends = (columns * picture.cell, rows * picture.cell)
    axes.imshow(
        _colours(picture), extent=(0, ends[0], ends[1], 0), interpolation="none", aspect="auto"
    )
    axes.set_xlim(0, picture.keys)
    axes.set_ylim(picture.queries, 0)
    bare(axes)
    if max(rows, columns) <= _APART:
        points = axes.get_window_extent().width / axes.figure.dpi * 72 / max(rows, columns)
        width = min(0.14 * points, 1.2)
        for index in range(1, columns):
            axes.axvline(index * picture.cell, color=PAPER, linewidth=width)
        for index in range(1, rows):
            axes.axhline(index * picture.cell, color=PAPER, linewidth=width)


def _colours(picture: Picture) -> Any:
    """The colour of each cell. The fourth root tells small shares from none and each other."""
    from matplotlib.colors import LinearSegmentedColormap, to_rgb

    from eyeline.patterns import FULL, PARTIAL

    shade = LinearSegmentedColormap.from_list("share", [_FEW, _ALL])
    colours = shade(picture.shares.numpy() ** 0.25)[..., :3]
    kinds = picture.kinds.numpy()
    colours[kinds < PARTIAL] = to_rgb(_NONE)
    colours[kinds == FULL] = to_rgb(_ALL)
    return colours


def _scales(axes: Axes, picture: Picture) -> None:
    """Slots: of keys along the top, of queries down the left side."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("keys", labelpad=6)
    axes.set_ylabel("queries", labelpad=6)
    for axis, size in ((axes.xaxis, picture.keys), (axes.yaxis, picture.queries)):
        count = 4 if size > 4 else 1
        axis.set_major_locator(MaxNLocator(count, integer=True, steps=[1, 2, 2.5, 5, 10]))
        axis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.tick_params(length=0, labelsize=9)


def _about_figure(picture: Picture, pairs: int | None, head: int | None) -> str:
    queries = counted(picture.queries, "query", "queries")
    words = [f"{queries} × {counted(picture.keys, 'key', 'keys')}"]
    if head is not None:
        words.append(f"head {head}")
    if pairs is not None:
        part = share(pairs, picture.queries * picture.keys)
        words.append(f"{counted(pairs, 'pair', 'pairs')}, {part} of all")
    return "  ·  ".join(words)


def _legend(figure: Figure, picture: Picture) -> None:
    """Squares with what they mean, along the lower edge."""
    from matplotlib.colors import LinearSegmentedColormap

    shade = LinearSegmentedColormap.from_list("share", [_FEW, _ALL])
    if picture.cell == 1:
        squares = [(_NONE, "may not look"), (_ALL, "may look")]
    else:
        squares = [(_NONE, "no pair")]
        squares += [(shade(part**0.25), words) for part, words in _SCALE] + [(_ALL, "all pairs")]
    width, height = figure.get_size_inches()
    left = _LEFT
    for colour, words in squares:
        axes = figure.add_axes((left / width, 0.41 / height, 0.14 / width, 0.14 / height))
        axes.set_facecolor(colour)
        axes.set_xticks([])
        axes.set_yticks([])
        for spine in axes.spines.values():
            spine.set_color(RULE)
        figure.text(
            (left + 0.22) / width, 0.48 / height, words, fontsize=8.5, color=INK, va="center"
        )
        left += 0.5 + 0.075 * len(words)
    if picture.cell > 1:
        sampled = "" if bool(picture.exact.all()) else ", for some cells an estimate"
        words = f"share of the {picture.cell:,} × {picture.cell:,} pairs in a cell{sampled}"
        figure.text(_LEFT / width, 0.2 / height, words, fontsize=8.5, color=QUIET, va="center")
