"""Rows of different lengths as batches by tokens: alike together, anew in each epoch."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, final

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument
from eyeline.hashing import generator, mixed
from eyeline.reading import read_file
from eyeline.tokens import Tokens

# Rows of two columns from a CSV or TSV file, or from folders by label.


_LONGEST_FIELD = 1 << 24


class Row(NamedTuple):
    """Two fields, text and label or source and target, and the line where they stand."""

    first: str
    second: str
    line: int


def read_table(file: str, columns: tuple[str, str]) -> list[Row]:
    """The two columns of every line. A .csv has commas and quotes; all else has tabs.

    columns: numbers from 1, or names that stand in the first line. Empty lines are passed over.

    Raises InvalidArgument, with the line, for one that lacks a column or has it empty, and for a
    file that cannot be read or has no rows.
    """
    text = read_file(file)
    lines = _lines(text, file)
    places = _places(file, columns, lines)
    names = columns if not columns[0].isdigit() else tuple(f"column {c}" for c in columns)
    rows = []
    for number, fields in lines:
        if not any(field.strip() for field in fields):
            continue
        found = [fields[place].strip() if place < len(fields) else "" for place in places]
        for name, field in zip(names, found, strict=True):
            if not field:
                there = "is 1 column" if len(fields) == 1 else f"are {len(fields)} columns"
                raise InvalidArgument(
                    f"{file}, line {number}: {name} is missing or empty; there {there}"
                )
        rows.append(Row(found[0], found[1], number))
    if not rows:
        raise InvalidArgument(f"{file}: it has no rows; there is nothing to learn from")
    return rows


def read_folders(root: str) -> list[Row]:
    """root/LABEL/FILE: each file is a text, and the name of its folder is its label."""
    folders = sorted(p for p in Path(root).iterdir() if p.is_dir() and p.name[0] != ".")
    if not folders:
        raise InvalidArgument(
            f"{root}: a folder of classes has one folder in it for each, with a file for each text"
        )
    rows = []
    for folder in folders:
        for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.name[0] != "."):
            text = read_file(path).strip()
            if not text:
                raise InvalidArgument(f"{path}: it is empty; there is nothing to learn from")
            rows.append(Row(text, folder.name, 1))
    if not rows:
        raise InvalidArgument(f"{root}: its folders have no files; there is nothing to learn from")
    return rows


def _lines(text: str, file: str) -> Iterator[tuple[int, Sequence[str]]]:
    """Line numbers and fields. A quoted field of a CSV may go over several lines."""
    if not file.lower().endswith(".csv"):
        for number, line in enumerate(text.split("\n"), start=1):
            yield number, line.split("\t")
        return
    csv.field_size_limit(_LONGEST_FIELD)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    number = 1
    while True:
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise InvalidArgument(
                f"{file}, line {reader.line_num}: it is no CSV: {error}"
            ) from None
        yield number, fields
        number = reader.line_num + 1


def _places(
    file: str, columns: tuple[str, str], lines: Iterator[tuple[int, Sequence[str]]]
) -> list[int]:
    """Where the columns stand; the first line is read if it has their names."""
    if all(column.isdigit() and int(column) > 0 for column in columns):
        return [int(column) - 1 for column in columns]
    if any(column.isdigit() for column in columns):
        raise InvalidArgument(
            f"columns {columns[0]!r} and {columns[1]!r}: two numbers from 1, or two names"
        )
    _, header = next(lines, (1, []))
    names = [name.strip() for name in header]
    for column in columns:
        if column not in names:
            raise InvalidArgument(
                f"{file}, line 1: there is no column {column!r}; there are {', '.join(names)}"
            )
    return [names.index(column) for column in columns]


@final
class RowOrder:
    """Which rows the batch of a step has: a pure function of (seed, step).

    Rows are ordered by size, equal ones by chance, and cut into batches of at most
    ``batch_tokens`` slots, pads included; the batches of an epoch come in an order drawn anew.
    sizes: of each row, in slots. count: batches per epoch, the same in each.
    """

    def __init__(self, sizes: Sequence[int], *, batch_tokens: int, seed: int) -> None:
        self._sizes, self._seed = torch.tensor(sizes), seed
        self._edges = _edges(sorted(sizes), batch_tokens)
        self.count = len(self._edges) - 1
        self._last = (0, self._drawn(0))

    def at(self, step: int) -> list[int]:
        """The rows of step 1, 2, …."""
        epoch, index = divmod(step - 1, self.count)
        if epoch != self._last[0]:
            self._last = epoch, self._drawn(epoch)
        rows, order = self._last[1]
        batch = order[index]
        return rows[self._edges[batch] : self._edges[batch + 1]]

    def _drawn(self, epoch: int) -> tuple[list[int], list[int]]:
        drawn = generator(self._seed, "rows", epoch)
        shuffled = torch.randperm(len(self._sizes), generator=drawn)
        by_size = shuffled[self._sizes[shuffled].argsort(stable=True)]
        return by_size.tolist(), torch.randperm(self.count, generator=drawn).tolist()


def _edges(sizes: Sequence[int], batch_tokens: int) -> list[int]:
    """Where batches begin, in rows ordered by size; a row longer than a batch is one alone."""
    edges = [0]
    for place, size in enumerate(sizes):
        if place > edges[-1] and size * (place - edges[-1] + 1) > batch_tokens:
            edges.append(place)
    return [*edges, len(sizes)]


def padded(rows: Sequence[Sequence[int]], fill: int) -> tuple[Tensor, Tokens | None]:
    """Ids (B, longest), filled up on the right, and their tokens; None if none is filled up."""
    lengths = [len(row) for row in rows]
    longest = max(lengths)
    ids = torch.tensor([list(row) + [fill] * (longest - len(row)) for row in rows])
    if min(lengths) == longest:
        return ids, None
    return ids, Tokens.padded(lengths, "right")


def split_rows(
    rows: Sequence[Row], share: float, seed: int
) -> tuple[list[Row], list[Row]]:  # fmt: skip
    """Rows to train on, and rows held out: those whose first field the seed draws.

    A row is held out if a number from 0 to 1 that depends on (seed, first field) alone is below
    ``share``: equal texts are on one side, whatever file and order they come in.

    Raises InvalidArgument if either side is empty.
    """
    if not share:
        return list(rows), []
    held = [mixed(seed, "row", row.first) < share * 2**63 for row in rows]
    parts = ([r for r, h in zip(rows, held, strict=True) if not h],
             [r for r, h in zip(rows, held, strict=True) if h])  # fmt: skip
    if not all(parts):
        raise InvalidArgument(
            f"{len(rows)} rows are too few to hold {share:g} of them out; take more rows, another "
            "share, or held-out rows of their own"
        )
    return parts
