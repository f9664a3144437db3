"""Runs so small that they take a second: texts, rows, and a model of a few thousand numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from eyeline.training import Course, Run, Shape, Source
from eyeline.training.making import make_task
from eyeline.training.processes import ALONE, Processes
from eyeline.training.texts import tokenizer_of
from eyeline.training.trainer import Trainer

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "and",
    "then",
    "sleeps",
    "well",
]
SHAPE = Shape("llama", layers=2, width=22, heads=1, length=13)
COURSE = Course(steps=11, batch_tokens=97, rate=5e-3, warmup=3, seed=7)


def text(words: int = 400) -> str:
    """Some words, over and over, in an order that does not repeat soon."""
    return " ".join(WORDS[(i * i + i // 7) % len(WORDS)] for i in range(words)) + "\n"


def write_text(folder: Path, words: int = 400) -> Path:
    path = folder / "text.txt"
    path.write_text(text(words))
    return path


def write_table(folder: Path, *, pairs: bool = False) -> Path:
    """Lines "word word<TAB>class", or pairs of which the second is the first in capitals."""
    lines = []
    for i in range(101):
        one = f"{WORDS[i % 13]} {WORDS[i * 5 % 11]} {i % 17}"
        lines.append(f"{one}\t{one.upper() if pairs else 'abc'[i % 13 % 3]}\n")
    path = folder / "rows.tsv"
    path.write_text("".join(lines))
    return path


def tiny_run(task: Any, folder: Path, **changes: Any) -> Run:
    """A run of a task; changes: of shape, source or course, by name."""
    table = task in ("classify", "seq2seq")
    file = write_table(folder, pairs=task == "seq2seq") if table else write_text(folder)
    family = {"lm": "llama", "seq2seq": "transformer"}.get(task, "bert")
    shape = replace(SHAPE, family=family, length=31 if table else 13)
    run = Run(task, shape, Source((str(file),), validation=0.1), COURSE)
    for part in ("shape", "source", "course"):
        known = vars(getattr(run, part))
        mine = {name: value for name, value in changes.items() if name in known}
        run = replace(run, **{part: replace(getattr(run, part), **mine)})
    return run


def trainer_of(run: Run, processes: Processes = ALONE) -> Trainer:
    return Trainer(make_task(run, tokenizer_of(run.source.tokenizer)), run.course, processes)
