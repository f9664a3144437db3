"""`eyeline compare`: one text read under several patterns; what each costs, what each loses."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from eyeline.cli.options import PATTERN_HELP, Json, ModelDtype, Plot, check_plot
from eyeline.errors import InvalidArgument
from eyeline.reading import read_file, read_stdin

if TYPE_CHECKING:
    from eyeline.cli.options import PatternText
    from eyeline.cli.output import Ready
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
    from eyeline.cli.options import read_patterns

    check_plot(plot)
    asked = read_patterns(pattern if pattern else DEFAULT_PATTERNS)
    source = _text(text)
    comparison, ready = _measure(
        source, asked, model=model, length=length, rounds=rounds, dtype=dtype
    )
    title = Title(ready.name, ready.dtype, source.name)
    if plot is not None:
        from eyeline.cli.compare_output import draw

        draw(comparison, title, plot)
    if as_json:
        from eyeline.cli.output import print_json

        print_json(_answer(comparison, ready, source))
    else:
        from eyeline.cli.compare_output import show

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
    from eyeline.cli.output import Bar, load_model
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
    from eyeline.cli.output import environment

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
