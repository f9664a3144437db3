"""What several verbs show: a bar while they work, numbers as people read them, tables, JSON."""

from __future__ import annotations

import json
import platform
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, final

from eyeline.cli.options import ModelDtype, torch_dtype
from eyeline.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table

    from eyeline.models import LanguageModel
    from eyeline.tokenizer import AnyTokenizer

# A progress bar on stderr, where that is a terminal.


@final
class Bar:
    """``with Bar() as report: …``: report(what, done, total) shows how far the work is.

    It is gone when the work is done. A total of 0 shows that something moves, not how far.
    """

    def __init__(self, what: str = "") -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
            # Redrawing takes time from what is measured.
            refresh_per_second=4,
        )
        self._task = self._progress.add_task(what, total=None)

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        self._progress.update(
            self._task, description=what, completed=done, total=total if total else None
        )


WIDE = 95
"""Columns from which on tables need not be narrow."""


def print_json(answer: dict[str, Any]) -> None:
    """One JSON object on stdout."""
    json.dump(answer, sys.stdout, indent=2, ensure_ascii=False, allow_nan=False)
    sys.stdout.write("\n")


def console() -> Console:
    """Where tables go. Where no terminal says how wide it is, 100 columns."""
    from rich.console import Console

    plain = Console(highlight=False)
    return plain if plain.is_terminal else Console(highlight=False, width=100)


def table(out: Console, *columns: str, title: str | None = None) -> Table:
    """An empty table: names on the left, numbers on the right, close together if it is narrow."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(
        title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD,
        padding=(0, 2 if out.width >= WIDE else 1, 0, 0), pad_edge=False,
    )  # fmt: skip
    made.add_column(columns[0], overflow="fold", min_width=12)
    for column in columns[1:]:
        made.add_column(column, justify="right", no_wrap=True)
    return made


def data_size(count: float | None) -> str:
    """Bytes in a unit that leaves few digits: 11.9 MB."""
    if count is None:
        return "—"
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:,.{0 if count >= 100 * size else 1}f} {unit}"
    return f"{count:.0f} B"


def duration(seconds: float | None) -> str:
    """Seconds in a unit that leaves few digits: 12.3 ms."""
    if seconds is None:
        return "—"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.{0 if seconds >= 100 * size else 1}f} {unit}"
    return f"{seconds * 1e6:.0f} µs"


def percent(share: float, *, sign: bool = False) -> str:
    """0.034 → 3.4 %, and 44 % from ten on."""
    value = 100 * share
    digits = 0 if abs(value) >= 9.95 else 1
    return f"{value:{'+' if sign else ''}.{digits}f} %"


def share(part: int, whole: int) -> str:
    """``percent`` with two digits left, however small: 0.026 %."""
    value = part / whole if whole else 0.0
    return percent(value) if value >= 0.001 or not value else f"{100 * value:.2g} %"


def counted(number: int, one: str, many: str) -> str:
    """A number with its noun: 1 query, 1,024 queries."""
    return f"{number:,} {one if number == 1 else many}"


def environment() -> dict[str, Any]:
    """What the numbers depend on beside the command."""
    import torch

    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
    }


# A language model for a verb, loaded with a bar.


class Ready(NamedTuple):
    """A model with its tokenizer."""

    name: str
    model: LanguageModel
    tokenizer: AnyTokenizer
    source: Path

    @property
    def dtype(self) -> str:
        """In words."""
        return str(self.model.embedding.weight.dtype).removeprefix("torch.")


def load_model(
    name: str | None,
    *,
    dtype: ModelDtype,
    encodings: Literal["absolute", "recounted"] | None = None,
) -> Ready:
    """The named language model, or the default one; encodings: its own if not given."""
    from eyeline.checkpoints.known import DEFAULT_MODEL
    from eyeline.loading import load
    from eyeline.models import LanguageModel

    name = name if name is not None else DEFAULT_MODEL
    with Bar(f"loading {name}") as report:
        loaded = load(
            name,
            kind=LanguageModel,
            encodings=encodings,
            dtype=torch_dtype(dtype),
            progress=report,
        )
    if loaded.tokenizer is None:
        raise CheckpointError(f"{loaded.source}: there is no tokenizer in it, and text needs one")
    return Ready(name, loaded.model, loaded.tokenizer, loaded.source)
