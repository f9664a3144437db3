"""The loop: steps, a line for each, and every so often a measure, a state, and the model itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import final

from eyeline.saving import save
from eyeline.training.interrupts import Interrupts
from eyeline.training.metrics import Metrics
from eyeline.training.states import last_step, write_state
from eyeline.training.trainer import Diverged, Stepped, Trainer
from eyeline.training.words import TextTokenizer


@dataclass(frozen=True)
class Told:
    """What is reported after a step. measured: what was found, if this step was measured.

    stored: whether state and model were stored after it.
    """

    stepped: Stepped
    steps: int
    tokens_per_second: float
    seconds_left: float
    stored: bool = False
    measured: dict[str, float] = field(default_factory=dict)


Report = Callable[[Told], object]


@final
class Loop:
    """Runs a trainer to the end of its course. every: steps between two stored states.

    tell: called after each step, in the first process. interrupted: whether it was stopped.
    """

    def __init__(
        self,
        trainer: Trainer,
        folder: Path,
        tokenizer: TextTokenizer,
        *,
        every: int,
        tell: Report | None = None,
    ) -> None:
        self.trainer, self.folder, self.tokenizer = trainer, folder, tokenizer
        self.every, self.tell = every, tell
        self.measured: dict[str, float] = {}
        self.interrupted = False

    def run(self) -> None:
        """All steps that are left. Raises Diverged, and keeps what was stored before."""
        first = self.trainer.processes.first
        metrics = Metrics(self.folder, step=self.trainer.step) if first else None
        pace = _Pace()
        try:
            with Interrupts() as interrupts:
                while not self.trainer.done and not self.interrupted:
                    start = perf_counter()
                    stepped = self._advance(interrupts.wanted)
                    self.interrupted = stepped.stop
                    pace.add(stepped, perf_counter() - start)
                    if metrics is not None:
                        self._note(stepped, pace, metrics)
        finally:
            if metrics is not None:
                metrics.close()
        self.trainer.processes.wait()

    def store(self) -> None:
        """Writes the state, then the model, which is ready to use."""
        write_state(self.folder, self.trainer)
        task = self.trainer.task
        save(task.model, self.folder, tokenizer=self.tokenizer, notes=task.notes())

    def _advance(self, stop: bool) -> Stepped:
        try:
            return self.trainer.advance(stop=stop)
        except Diverged as error:
            raise Diverged(
                f"{error}; what was stored at step {last_step(self.folder)} is kept in "
                f"{self.folder}. A lower rate than {self.trainer.course.rate:g} or a longer "
                "warm-up may help"
            ) from None

    def _note(self, stepped: Stepped, pace: _Pace, metrics: Metrics) -> None:
        metrics.add({
            "step": stepped.step, "loss": stepped.loss, "rate": stepped.rate, "norm": stepped.norm,
            "tokens": metrics.tokens + pace.tokens, "seconds": metrics.seconds + pace.seconds,
            **({"auxiliary": stepped.auxiliary} if stepped.auxiliary else {}),
        })  # fmt: skip
        due = self.trainer.done or stepped.stop or stepped.step % self.every == 0
        measured = self._measured(stepped, metrics) if due else {}
        if self.tell is not None:
            steps = self.trainer.course.steps
            left = (steps - stepped.step) * pace.step_seconds
            self.tell(Told(stepped, steps, pace.tokens_per_second, left, due, measured))

    def _measured(self, stepped: Stepped, metrics: Metrics) -> dict[str, float]:
        """Measures, and stores all there is; measuring and storing take no time from the pace."""
        found = {} if stepped.stop else self.trainer.measure()
        if found:
            metrics.add({"step": stepped.step, "measured": found})
            self.measured = found
        metrics.synchronise()
        self.store()
        return found


@final
class _Pace:
    """Tokens and seconds of the steps so far; what is measured and stored between is not counted.

    A speed is that of the last steps, about twenty.
    """

    _MEMORY = 0.95

    def __init__(self) -> None:
        self.tokens, self.seconds = 0, 0.0
        self.step_seconds = self.tokens_per_second = 0.0

    def add(self, stepped: Stepped, seconds: float) -> None:
        """A step took that long."""
        self.tokens, self.seconds = self.tokens + stepped.tokens, self.seconds + seconds
        known = self._MEMORY if self.step_seconds else 0.0
        self.step_seconds = known * self.step_seconds + (1 - known) * seconds
        speed = stepped.tokens / seconds if seconds else 0.0
        self.tokens_per_second = known * self.tokens_per_second + (1 - known) * speed
