"""`eyeline translate`: texts to other texts, by a model that was trained on pairs."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from eyeline.cli.options import Json, read_texts
from eyeline.cli.output import (
    Bar,
    console,
    counted,
    duration,
    environment,
    percent,
    print_json,
    table,
)
from eyeline.errors import CheckpointError, InvalidArgument

if TYPE_CHECKING:
    from eyeline.models import Transformer
    from eyeline.translation import Report, Translation
    from eyeline.translation.texts import TextIds

# How good translations were, as a table: the model beside copying.


def show(report: Report, seconds: float) -> None:
    """Exact match and character error rate, and what is left where copying is wrong."""
    out = console()
    made = table(out, "", "exact", "exact where changed", "character errors")
    for name, exact, changed, errors in (
        ("model", report.exact, report.changed_exact, report.error_rate),
        ("copying the source", report.copy_exact, 0.0, report.copy_error_rate),
    ):
        made.add_row(name, percent(exact), percent(changed), percent(errors))
    out.print(made)
    pairs = counted(report.pairs, "pair", "pairs")
    out.print(f"{pairs}, {report.changed:,} changed by the reference · {duration(seconds)}")


def translate(
    folder: Annotated[
        str, typer.Argument(metavar="DIR", help="A folder made by eyeline train seq2seq.")
    ],
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEXT]...", help="One text or several; - reads stdin."),
    ] = None,
    file: Annotated[
        str | None, typer.Option("--file", help="A text a line; - reads stdin.")
    ] = None,
    score: Annotated[
        Path | None,
        typer.Option(metavar="FILE.tsv|csv", help="Translate column 1 and compare with column 2."),
    ] = None,
    beams: Annotated[
        int, typer.Option(min=1, help="How many beginnings are followed; 1 is greedy.")
    ] = 4,
    best: Annotated[int, typer.Option(min=1, help="Show the best so many, with scores.")] = 1,
    length_penalty: Annotated[
        float, typer.Option(help="Rank by log p / n^this: above 0 longer, below 0 shorter.")
    ] = 1.0,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Write no more; the source's and 50 if not given.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Translate texts, or whatever else a model was trained on pairs for."""
    sources, references = _asked(texts, file, score)
    if best > beams:
        raise InvalidArgument(f"--best {best} of --beams {beams}: there are no more than the beams")
    ready = _load(folder)
    start = perf_counter()
    options = {"beams": beams, "length_penalty": length_penalty, "max_new_tokens": max_new_tokens}
    found = _translated(ready, sources, **options)
    seconds = perf_counter() - start
    said = None if references is None else _compared(sources, found, references)
    if as_json:
        print_json({
            "translations": _listed(sources, found, best),
            "report": None if said is None else asdict(said),
            "model": folder, **options, "seconds": seconds, "environment": environment(),
        })  # fmt: skip
        return
    if said is not None:
        show(said, seconds)
    else:
        _show(sources, found, best)
    _warn(found)


class _Ready(NamedTuple):
    model: Transformer
    tokenizer: TextIds


def _asked(
    texts: list[str] | None, file: str | None, score: Path | None
) -> tuple[list[str], list[str] | None]:
    """The texts, and what they should become if that is known."""
    if score is None:
        return read_texts(texts, file), None
    if texts or file is not None:
        raise InvalidArgument("--score has its own texts: give no TEXT and no --file beside it")
    from eyeline.training.rows import read_table

    rows = read_table(str(score), ("1", "2"))
    return [row.first for row in rows], [row.second for row in rows]


def _load(folder: str) -> _Ready:
    from eyeline.loading import load
    from eyeline.models import Transformer

    with Bar(f"loading {folder}") as report:
        loaded = load(folder, progress=report)
    if not isinstance(loaded.model, Transformer):
        raise InvalidArgument(
            f"{folder} holds a {type(loaded.model).__name__}: translate needs a model that reads "
            "one text and writes another, as eyeline train seq2seq makes it"
        )
    if loaded.tokenizer is None:
        raise CheckpointError(f"{folder}: there is no tokenizer in it, and text needs one")
    return _Ready(loaded.model, loaded.tokenizer)


def _translated(ready: _Ready, sources: list[str], **options: Any) -> list[list[Translation]]:
    from eyeline.translation import translate as translate_texts

    with Bar("translating") as report:
        return translate_texts(ready.model, ready.tokenizer, sources, progress=report, **options)


def _compared(sources: list[str], found: list[list[Translation]], references: list[str]) -> Report:
    from eyeline.translation import report

    return report(sources, [answers[0].text for answers in found], references)


def _listed(sources: list[str], found: list[list[Translation]], best: int) -> list[dict[str, Any]]:
    return [
        {"source": source, "best": [asdict(one) for one in answers[:best]]}
        for source, answers in zip(sources, found, strict=True)
    ]


def _show(sources: list[str], found: list[list[Translation]], best: int) -> None:
    """A line each; with several answers the source, and below it their scores and texts."""
    for source, answers in zip(sources, found, strict=True):
        if best == 1:
            print(answers[0].text)
            continue
        print(source)
        for one in answers[:best]:
            print(f"{one.score:9.4f}  {one.text}{'' if one.finished else ' …'}")


def _warn(found: list[list[Translation]]) -> None:
    cut = sum(not answers[0].finished for answers in found)
    if cut:
        print(
            f"eyeline: {cut:,} of {len(found):,} did not come to an end; "
            "--max-new-tokens allows more",
            file=sys.stderr,
        )
