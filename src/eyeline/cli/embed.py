"""`eyeline embed`: sentence vectors, and how near they are to each other."""

from __future__ import annotations

import shutil
import sys
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from eyeline.cli.options import (
    PATTERN_HELP,
    Json,
    ModelDtype,
    read_pattern,
    read_texts,
    torch_dtype,
)
from eyeline.cli.output import Bar, counted, environment, print_json, table
from eyeline.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from eyeline.embedding import Encoded, Encodes
    from eyeline.models import Model
    from eyeline.models.sentence import SentenceSettings

# Vectors a line each, and a table of the cosines between them.


MOST = 12
"""Texts up to which there is a table."""


def print_vectors(vectors: Tensor) -> None:
    """One vector a line on stdout. A terminal shows as many numbers as fit in its line."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for vector in vectors.tolist():
        numbers = [f"{number:.8g}" for number in vector]
        print(_shortened(numbers, width) if width is not None else " ".join(numbers))


def _shortened(numbers: list[str], width: int) -> str:
    end = f" … {len(numbers):,} numbers; whole in a pipe or with --json"
    line = ""
    for number in numbers:
        if len(line) + len(number) + 1 + len(end) > width:
            return line + end
        line += f" {number}" if line else number
    return line


def print_cosines(texts: list[str], vectors: Tensor) -> None:
    """The cosine of each two of up to ``MOST`` texts, on stderr: stdout is for the vectors."""
    if not 2 <= len(texts) <= MOST:
        return
    from rich.console import Console

    from eyeline.embedding import cosines

    plain = Console(stderr=True, highlight=False)
    out = plain if plain.is_terminal else Console(stderr=True, highlight=False, width=100)
    shown = table(out, "cosine", *(str(number) for number in range(1, len(texts) + 1)))
    room = max(12, out.width - 7 * len(texts) - 4)
    for number, (text, row) in enumerate(zip(texts, cosines(vectors).tolist(), strict=True), 1):
        shown.add_row(_label(number, text, room), *(f"{value:.2f}" for value in row))
    out.print(shown)


def _label(number: int, text: str, room: int) -> str:
    from rich.markup import escape

    line = f"{number} {' '.join(text.split())}"
    return escape(line if len(line) <= room else f"{line[: room - 1]}…")


class PoolingChoice(str, Enum):
    """How the vectors of tokens become one."""

    mean = "mean"
    cls = "cls"
    max = "max"


def embed(
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT", help="One text or several; - reads lines from stdin."),
    ] = None,
    file: Annotated[
        str | None, typer.Option("--file", metavar="FILE", help="A text a line; - is stdin.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="A model's name or folder; all-MiniLM-L6-v2 if not given."),
    ] = None,
    pattern: Annotated[str | None, typer.Option("--pattern", help=PATTERN_HELP)] = None,
    pooling: Annotated[
        PoolingChoice | None, typer.Option(help="How tokens become one; else as the model says.")
    ] = None,
    normalize: Annotated[
        bool | None, typer.Option(help="Bring vectors to length 1, or not; else as it says.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Read so many tokens of a text; else as it says.")
    ] = None,
    dtype: Annotated[
        ModelDtype, typer.Option(help="The type of the weights.")
    ] = ModelDtype.float32,
    as_json: Json = False,
) -> None:
    """Turn texts into vectors, one a line, and compare them."""
    found = read_texts(texts, file)
    changes = {"how": pooling, "normalize": normalize, "max_tokens": max_tokens}
    ready = _load(model, pattern, dtype, changes)
    encoded, vectors = _embedded(ready, found)
    if as_json:
        print_json(_answer(ready, found, encoded, vectors))
    else:
        print_vectors(vectors)
        print_cosines(found, vectors)
        print(_summary(ready.settings, vectors), file=sys.stderr)
    _warn(encoded)


class _Ready(NamedTuple):
    name: str
    model: Model
    tokenizer: Encodes
    settings: SentenceSettings
    source: Path


def _load(
    name: str | None, pattern: str | None, dtype: ModelDtype, changes: dict[str, Any]
) -> _Ready:
    from dataclasses import replace

    from eyeline.checkpoints.known import DEFAULT_ENCODER
    from eyeline.loading import load
    from eyeline.models.sentence import SentenceSettings

    chosen = read_pattern(pattern) if pattern is not None else None
    name = name if name is not None else DEFAULT_ENCODER
    with Bar(f"loading {name}") as report:
        options: dict[str, Any] = {"dtype": torch_dtype(dtype), "packed": False, "progress": report}
        loaded = load(name, pattern=None if chosen is None else chosen.single, **options)
        if chosen is not None and chosen.single is None:
            loaded = load(name, pattern=chosen.of_layers(loaded.config.layers), **options)
    if loaded.tokenizer is None:
        raise CheckpointError(f"{loaded.source}: there is no tokenizer in it, and text needs one")
    told = SentenceSettings.of_folder(loaded.source, loaded.config)
    given = {key: value for key, value in changes.items() if value is not None}
    if "how" in given:
        given["how"] = given["how"].value
    return _Ready(name, loaded.model, loaded.tokenizer, replace(told, **given), loaded.source)


def _embedded(ready: _Ready, texts: list[str]) -> tuple[list[Encoded], Tensor]:
    from eyeline.embedding import embed_ids, encode_texts

    settings = ready.settings
    encoded = encode_texts(ready.tokenizer, texts, max_tokens=settings.max_tokens)
    with Bar("embedding") as report:
        vectors = embed_ids(
            ready.model,
            [text.ids for text in encoded],
            how=settings.how,
            normalize=settings.normalize,
            progress=report,
        )
    return encoded, vectors


def _answer(
    ready: _Ready, texts: list[str], encoded: list[Encoded], vectors: Tensor
) -> dict[str, Any]:
    from eyeline.embedding import cosines

    choices = ready.model.choices()
    return {
        "texts": [
            {"text": text, "tokens": each.length, "tokens_read": len(each.ids), "vector": vector}
            for text, each, vector in zip(texts, encoded, vectors.tolist(), strict=True)
        ],
        # For more texts it would be longer than the vectors themselves.
        "cosines": cosines(vectors).tolist() if 2 <= len(texts) <= MOST else None,
        "model": ready.name,
        "source": str(ready.source),
        "pooling": ready.settings.how,
        "normalized": ready.settings.normalize,
        "max_tokens": ready.settings.max_tokens,
        "patterns": [str(each) for each in dict.fromkeys(choices["pattern"])],
        "dtype": str(next(ready.model.parameters()).dtype).removeprefix("torch."),
        "environment": environment(),
    }


def _summary(settings: SentenceSettings, vectors: Tensor) -> str:
    how = {"mean": "mean of", "cls": "first of", "max": "largest of"}[settings.how]
    return " · ".join((
        counted(len(vectors), "vector", "vectors"),
        f"{vectors.shape[1]:,} numbers",
        f"{how} the tokens",
        *(["length 1"] if settings.normalize else []),
    ))  # fmt: skip


def _warn(encoded: list[Encoded]) -> None:
    """Tells which texts were not read to their end."""
    cut = [(place, text) for place, text in enumerate(encoded, 1) if len(text.ids) < text.length]
    for place, text in cut[:3]:
        print(
            f"eyeline: text {place} has {text.length:,} tokens, and the first {len(text.ids):,} "
            "were read (--max-tokens)",
            file=sys.stderr,
        )
    if len(cut) > 3:
        print(f"eyeline: and {len(cut) - 3:,} more texts were cut", file=sys.stderr)
