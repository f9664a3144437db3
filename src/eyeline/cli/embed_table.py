"""Vectors a line each, and a table of the cosines between them."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

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

    from eyeline.cli.output import table
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
