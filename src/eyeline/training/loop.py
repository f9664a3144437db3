"""The loop: steps, a line for each, and every so often a measure, a state, and the model itself."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from types import FrameType, TracebackType
from typing import Any, TextIO, final

from eyeline.loading.saver import save, write_whole
from eyeline.tokenizer import AnyTokenizer
from eyeline.training.states import last_step, write_state
from eyeline.training.trainer import Diverged, Stepped, Trainer

# Ctrl-C as a wish: the step that is under way is finished, and what was learned is stored.


@final
class Interrupts:
    """``with Interrupts() as interrupts: …``: ``wanted`` says whether someone wants to stop.

    Ctrl-C and a polite kill (SIGTERM) are noted; a second one ends the program at once. Outside
    the main thread nothing is caught.
    """

    def __init__(self) -> None:
        self.wanted = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.wanted:
            raise KeyboardInterrupt
        self.wanted = True


# metrics.jsonl: a line for each step and for each time the model was measured.
#
#     {"step": 100, "loss": 1.62, "rate": 0.002, "norm": 0.41, "tokens": 409600, "seconds": 41.2}
#     {"step": 100, "measured": {"loss": 1.71, "bits_per_byte": 2.47, "perplexity": 5.53}}
#
# Loss in nats per target, and "auxiliary" beside it where a mechanism asks for one; tokens and
# seconds since the beginning, over all that was resumed. A line is appended with one write; what a
# kill leaves of a line, and lines of steps that will be done again, are dropped when the run is
# resumed.

FILE = "metrics.jsonl"


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The complete lines, in order; [] if there is no file."""
    path = folder / FILE
    if not path.is_file():
        return []
    found = []
    for line in path.read_bytes().split(b"\n")[:-1]:  # a last line without its end is half
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and isinstance(entry.get("step"), int):
            found.append(entry)
    return found


@final
class Metrics:
    """Appends to the file of a folder, after the lines up to a step.

    tokens, seconds: as the last line told them, to be counted on from.
    """

    def __init__(self, folder: Path, *, step: int) -> None:
        kept = [entry for entry in read_metrics(folder) if entry["step"] <= step]
        text = "".join(_line(entry) for entry in kept)
        write_whole(folder / FILE, lambda path: path.write_text(text, "utf-8"))
        steps = [entry for entry in kept if "tokens" in entry]
        self.tokens = int(steps[-1]["tokens"]) if steps else 0
        self.seconds = float(steps[-1]["seconds"]) if steps else 0.0
        self.measured = {entry["step"] for entry in kept if "measured" in entry}
        self._file: TextIO = (folder / FILE).open("a", encoding="utf-8")

    def add(self, entry: Mapping[str, Any]) -> None:
        """Appends a line."""
        self._file.write(_line(entry))
        self._file.flush()

    def synchronise(self) -> None:
        """Waits until the disk has all lines."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _line(entry: Mapping[str, Any]) -> str:
    return json.dumps(_short(entry)) + "\n"


def _short(value: Any) -> Any:
    """Numbers with six digits, which is more than they mean."""
    if isinstance(value, Mapping):
        return {name: _short(each) for name, each in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value


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
        tokenizer: AnyTokenizer,
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
