"""What came out of training: a table and the next command, or JSON."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from eyeline.cli.output import console, environment, table
from eyeline.cli.train_words import NAMES, clock, facts_in_words, number

if TYPE_CHECKING:
    from eyeline.training import Trained

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
