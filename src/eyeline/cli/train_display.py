"""How training is shown while it goes on: a bar on a terminal, and a line for each measure."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from eyeline.cli.train_words import clock, measure, model_in_words

if TYPE_CHECKING:
    from eyeline.training.loop import Told
    from eyeline.training.trainer import Trainer


@final
class Display:
    """``with Display(folder) as display``: ``begin`` and ``tell`` are for ``train``.

    All goes to stderr. The figure of the losses is drawn anew whenever a state is stored.
    """

    def __init__(self, folder: Path, *, silent: bool) -> None:
        console = Console(stderr=True, highlight=False)
        self._folder, self._silent, self._main = folder, silent, ""
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            console=console,
            transient=True,
            disable=silent or not console.is_terminal,
            # Redrawing takes time from training.
            refresh_per_second=2,
        )
        self._task = self._bar.add_task("reading", total=None)

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def begin(self, trainer: Trainer) -> None:
        """Says what is trained, on how much."""
        self._main = trainer.task.main
        self._bar.update(self._task, total=trainer.course.steps, completed=trainer.step)
        self._line(model_in_words(trainer))

    def tell(self, told: Told) -> None:
        """A step is done."""
        stepped = told.stepped
        pace = (
            f"loss {stepped.loss:.3f} · {told.tokens_per_second:,.0f} tokens/s · "
            f"{clock(told.seconds_left)} left"
        )
        self._bar.update(self._task, description=pace, completed=stepped.step)
        if not told.stored:
            return
        found = told.measured.get(self._main)
        held = f"held out {measure(self._main, found)} · " if found is not None else ""
        self._line(f"step {stepped.step:,} of {told.steps:,} · {held}{pace}")
        from eyeline.cli.train_figure import draw

        draw(self._folder, self._main)

    def _line(self, text: str) -> None:
        if not self._silent:
            self._bar.console.print(text, soft_wrap=True, markup=False)
