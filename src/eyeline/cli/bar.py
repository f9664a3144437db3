"""A progress bar on stderr, where that is a terminal."""

from __future__ import annotations

from types import TracebackType
from typing import final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


@final
class Bar:
    """``with Bar() as report: …``: report(what, done, total) shows how far the work is.

    It is gone when the work is done. A total of 0 shows that something moves, not how far.
    """

    def __init__(self, what: str = "") -> None:
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
