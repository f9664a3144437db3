"""What `eyeline train` shows while it goes on and at its end: bar, lines, figure and summary."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from eyeline.cli.figures import COST, LOSS, QUIET, RULE, bare, heading, store, styled
from eyeline.cli.output import console, environment, percent, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from eyeline.training import Trained
    from eyeline.training.loop import Told
    from eyeline.training.trainer import Trainer

# Models, measures and times of training, in words.


_SHARES = frozenset({"accuracy", "commonest", "exact", "error_rate", "copy_exact"})
NAMES = {
    "loss": "held-out loss, nats",
    "bits_per_byte": "bits per byte",
    "perplexity": "perplexity",
    "accuracy": "accuracy",
    "commonest": "always the commonest class",
    "exact": "exactly right",
    "error_rate": "characters wrong",
    "copy_exact": "copying would get right",
}


def measure(name: str, value: float) -> str:
    """A measure with its unit: 2.27 bits per byte, 93 % exactly right."""
    if name in _SHARES:
        return f"{percent(value)} {NAMES[name]}"
    return f"{value:.3f} {NAMES.get(name, name)}"


def number(name: str, value: float) -> str:
    """A measure without its name, as a table shows it."""
    return percent(value) if name in _SHARES else f"{value:,.3f}"


def clock(seconds: float) -> str:
    """0:07, 12:34, 1:02:03."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def count(parameters: int) -> str:
    """3,280,128 → 3.3M."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if parameters >= size:
            return f"{parameters / size:.{0 if parameters >= 100 * size else 1}f}{unit}"
    return str(parameters)


def facts_in_words(facts: Mapping[str, Any]) -> str:
    """What is known of the data: 355,373 training tokens, 18,704 held-out tokens."""
    said = []
    for name, value in facts.items():
        if name == "classes":
            said.append(f"{len(value)} classes")
        elif name == "texts_cut":
            said += [f"{value:,} texts cut at the length"] if value else []
        else:
            said.append(f"{value:,} {name.replace('held_out', 'held-out').replace('_', ' ')}")
    return ", ".join(said)


def model_in_words(trainer: Trainer) -> str:
    """Model, data and course in one line."""
    model, course = trainer.model, trainer.course
    parameters = sum(p.numel() for p in model.parameters())
    config: Any = model.config
    epochs = course.steps / trainer.task.epoch
    said = (
        f"{type(model).__name__} of {count(parameters)} parameters ({config.layers} layers of "
        f"{config.width}, {config.heads} heads)",
        facts_in_words(trainer.task.facts),
        f"{course.steps:,} steps, {epochs:,.1f} times through",
        course.precision,
    )
    resumed = [f"on from step {trainer.step:,}"] if trainer.step else []
    return " · ".join([*said, *resumed])


# loss.png: the loss of each step, and what was measured on held-out data.

FILE = "loss.png"
_POINTS = 400


def draw(folder: Path, main: str) -> None:
    """Draws the metrics of a folder into it; nothing happens where matplotlib is missing."""
    from eyeline.training.loop import read_metrics

    lines = read_metrics(folder)
    if find_spec("matplotlib") is None or not any("loss" in line for line in lines):
        return
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(styled()):
        figure = Figure(figsize=(8.0, 4.6))
        heading(figure, "Training loss", _below(lines, main))
        axes = figure.add_axes((0.09, 0.13, 0.86, 0.68))
        _curves(axes, lines)
        beside = folder / f".{FILE}.part.png"
        store(figure, beside, option="loss.png")
        beside.replace(folder / FILE)


def _below(lines: list[dict[str, Any]], main: str) -> str:
    measured = [line["measured"] for line in lines if "measured" in line]
    last = f"; {measure(main, measured[-1][main])} on held-out data" if measured else ""
    return f"Nats per target, {lines[-1]['step']:,} steps{last}."


def _curves(axes: Axes, lines: list[dict[str, Any]]) -> None:
    steps = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    axes.plot(*zip(*_smooth(steps), strict=True), color=COST, linewidth=1.6, label="training")
    held = [(line["step"], line["measured"]["loss"]) for line in lines if "measured" in line]
    if held:
        axes.plot(
            *zip(*held, strict=True), color=LOSS, linewidth=2.2, marker="o", markersize=4,
            label="held out",
        )  # fmt: skip
    axes.grid(color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel("steps", color=QUIET)
    axes.legend(frameon=False)
    bare(axes)


def _smooth(steps: list[tuple[int, float]]) -> list[tuple[float, float]]:
    """Means of neighbours, so that there are no more points than can be told apart."""
    each = -(-len(steps) // _POINTS)
    parts = [steps[start : start + each] for start in range(0, len(steps), each)]
    return [(part[-1][0], sum(loss for _, loss in part) / len(part)) for part in parts]


# How training is shown while it goes on: a bar on a terminal, and a line for each measure.


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

        draw(self._folder, self._main)

    def _line(self, text: str) -> None:
        if not self._silent:
            self._bar.console.print(text, soft_wrap=True, markup=False)


_NEXT = {
    "lm": 'eyeline generate {folder} "The "',
    "mlm": 'eyeline embed "a text" "another" --model {folder}',
    "seq2seq": 'eyeline translate {folder} "a text"',
}


def show(trained: Trained) -> None:
    """Prints the table, and what can be done next."""
    out = console()
    for warning in trained.warnings:
        out.print(f"an older state was taken, since: {warning}", markup=False)
    run, folder = trained.run, shlex.quote(str(trained.folder))
    made = table(out, "trained", "")
    for name, value in _rows(trained):
        made.add_row(name, value)
    out.print(made)
    if trained.interrupted:
        out.print(
            f"interrupted; go on with: eyeline train {run.task} --out {folder} --resume",
            soft_wrap=True, markup=False,
        )  # fmt: skip
    elif run.task in _NEXT:
        out.print(f"next: {_NEXT[run.task].format(folder=folder)}", soft_wrap=True, markup=False)


def _rows(trained: Trained) -> list[tuple[str, str]]:
    run = trained.run
    rows = [
        ("model", f"{run.shape.family}, {trained.parameters:,} parameters"),
        ("data", facts_in_words(trained.facts)),
        ("steps", f"{trained.steps:,} of {run.course.steps:,}"),
        ("tokens", f"{trained.tokens:,}"),
        ("time of steps", clock(trained.seconds)),
    ]
    if trained.loss is not None:
        rows.append(("loss of the last step", f"{trained.loss:.3f}"))
    rows += [(NAMES.get(k, k), number(k, v)) for k, v in trained.measured.items()]
    return [*rows, ("folder", str(trained.folder))]


def answer(trained: Trained) -> dict[str, Any]:
    """The same as plain values."""
    told = asdict(trained)
    told["run"], told["folder"] = trained.run.as_json(), str(trained.folder)
    return {**told, "environment": environment()}
