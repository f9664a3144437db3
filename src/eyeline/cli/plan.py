"""`eyeline plan`: a pattern at a length, its picture, what it costs, and how it is computed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eyeline.cli.options import AttentionDtype, Json, check_plot
from eyeline.errors import InvalidArgument

if TYPE_CHECKING:
    from eyeline.cli.plan_report import Asked
    from eyeline.patterns import Pattern

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
    from eyeline.cli.output import Bar
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
        from eyeline.cli.output import print_json
        from eyeline.cli.plan_report import answer

        print_json(answer(found))
    else:
        from eyeline.cli.plan_output import show

        show(found)


def _single(text: str) -> Pattern:
    from eyeline.cli.options import read_pattern

    read = read_pattern(text)
    if read.single is None:
        raise InvalidArgument(f"{read.label!r}: plan has no layers; give one pattern")
    return read.single


def _draw(asked: Asked, pairs: int, path: Path) -> None:
    from eyeline.cli.plan_output import draw
    from eyeline.planning.pictures import picture

    made = picture(asked.shown, asked.queries, asked.keys, cells=_FINE)
    draw(made, str(asked.pattern), path, pairs=pairs, head=asked.shown_head)
