"""From what was asked to a run: what was not asked is usual, or as it was when it was begun."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from eyeline.cli.options import ModelDtype
from eyeline.errors import InvalidArgument
from eyeline.loading import multiplies_bfloat16
from eyeline.mechanisms.recipes import recipe
from eyeline.training.run import (
    FAMILIES,
    USUAL,
    Course,
    Precision,
    Run,
    Shape,
    Source,
    TaskName,
    size_of,
)
from eyeline.training.states import read_run

_SHAPE = ("layers", "width", "heads", "length", "dropout")
_SOURCE = ("held_out", "validation", "tokenizer")
_COURSE = ("steps", "batch_tokens", "rate", "warmup", "weight_decay", "clip", "seed")


def new_run(task: TaskName, asked: Mapping[str, Any]) -> Run:
    """A run with the usual values where nothing was asked."""
    if not asked.get("files"):
        raise InvalidArgument("there are no files to train on: name at least one")
    usual = USUAL[task]
    size = size_of(asked.get("size", usual.size))
    shape = Shape(
        FAMILIES[task][0], size.layers, size.width, size.heads, usual.length, dropout=usual.dropout
    )
    steps = asked.get("steps", usual.steps)
    warmup = max(1, steps // 20)
    course = Course(steps, usual.batch_tokens, size.rate, warmup, precision=precision_of())
    run = Run(task, shape, Source(files=()), course)
    return _with(run, asked)


def resumed_run(task: TaskName, asked: Mapping[str, Any], folder: Path) -> Run:
    """The run that was begun in the folder, with what is asked; that must be the same."""
    stored = read_run(folder)
    run = _with(stored, asked)
    if "size" in asked:
        size = size_of(asked["size"])
        shape = replace(run.shape, layers=size.layers, width=size.width, heads=size.heads)
        run = _with(replace(run, shape=shape), asked)
    return replace(run, task=task)


def precision_of(asked: ModelDtype = ModelDtype.auto) -> Precision:
    """What is multiplied in. A processor that multiplies bfloat16 does it faster."""
    if asked is ModelDtype.auto:
        return "bfloat16" if multiplies_bfloat16() else "float32"
    return "bfloat16" if asked is ModelDtype.bfloat16 else "float32"


def _with(run: Run, asked: Mapping[str, Any]) -> Run:
    shape: dict[str, Any] = {name: asked[name] for name in _SHAPE if name in asked}
    source: dict[str, Any] = {name: asked[name] for name in _SOURCE if name in asked}
    course: dict[str, Any] = {name: asked[name] for name in _COURSE if name in asked}
    if "model" in asked:
        shape["family"] = asked["model"]
    if "mechanism" in asked:
        shape["mechanism"] = str(recipe(asked["mechanism"]))
    if "pattern" in asked:
        shape["pattern"] = _pattern(asked["pattern"], asked.get("layers", run.shape.layers))
    if asked.get("files"):
        source["files"] = tuple(asked["files"])
    if "columns" in asked:
        source["columns"] = _columns(asked["columns"])
    if "precision" in asked:
        course["precision"] = precision_of(asked["precision"])
    return replace(
        run,
        shape=replace(run.shape, **shape),
        source=replace(run.source, **source),
        course=replace(run.course, **course),
    )


def _pattern(text: str, layers: int) -> tuple[str, ...]:
    from eyeline.cli.options import read_pattern

    found = read_pattern(text).of_layers(layers)
    return tuple(map(str, found)) if isinstance(found, list) else (str(found),)


def _columns(text: str) -> tuple[str, str]:
    names = [name.strip() for name in text.split(",")]
    if len(names) != 2 or not all(names):
        raise InvalidArgument(f'--columns {text!r}: two numbers or names, such as "1,2"')
    return names[0], names[1]
