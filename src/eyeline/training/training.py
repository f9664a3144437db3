"""``train``: a run from its beginning, or from where it stopped, to a folder ready to use."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyeline.checks import check_size
from eyeline.errors import InvalidArgument
from eyeline.loading.native_folder import FILE, read_tokenizer
from eyeline.tokenizer import AnyTokenizer
from eyeline.training.loop import FILE as METRICS
from eyeline.training.loop import Loop, Report, read_metrics
from eyeline.training.making import make_task
from eyeline.training.processes import joined
from eyeline.training.run import Run
from eyeline.training.states import FOLDER as STATES
from eyeline.training.states import read_run, read_state, write_run
from eyeline.training.texts import tokenizer_of
from eyeline.training.trainer import Trainer

# All that a run leaves in its folder; what else is there is somebody's own.
_WRITTEN = frozenset({
    FILE, METRICS, STATES, "model.safetensors", "tokenizer.json", "loss.png",
})  # fmt: skip


@dataclass(frozen=True)
class Trained:
    """What came out. steps: done in all; measured: the last measures, {} if nothing was held out.

    began: the step that was resumed from; warnings: what was wrong with later states.
    """

    run: Run
    folder: Path
    steps: int
    began: int
    parameters: int
    tokens: int
    seconds: float
    loss: float | None
    measured: dict[str, float]
    facts: dict[str, Any]
    interrupted: bool
    warnings: list[str]


def train(
    run: Run,
    folder: str | Path,
    *,
    resume: bool = False,
    force: bool = False,
    every: int = 200,
    tell: Report | None = None,
    begin: Callable[[Trainer], object] | None = None,
) -> Trained:
    """Trains, and stores in ``folder`` every ``every`` steps and at the end.

    The folder holds the model as ``eyeline.loading.saver.save`` writes it, metrics.jsonl, and in
    training/ what it takes to go on. It comes into being whole, with the untrained model, so that
    it can be read whatever moment the process ends at. resume: goes on after the last stored
    step; on one thread as if it had never stopped, bit for bit. force: replaces a folder that was
    trained before. tell: called after each step; begin: before the first, with the trainer.

    Under ``torchrun`` all processes call it, and the first writes.

    Raises InvalidArgument for a folder that is not empty without resume or force, for a run that
    is not the stored one, and for data that do not serve; Diverged if the loss becomes NaN.
    """
    # A link stays a link: what is exchanged is the folder that it leads to.
    place, processes = Path(folder).resolve(), joined()
    check_size("every", every)
    if resume:
        run.check_resumes(read_run(place))
    elif processes.first:
        _check_free(place, force=force)
    tokenizer = _tokenizer(run, place, resume=resume)
    trainer = Trainer(make_task(run, tokenizer), run.course, processes)
    loop = Loop(trainer, place, tokenizer, every=every, tell=tell)
    processes.wait()
    warnings = read_state(place, trainer) if resume else []
    if trainer.step > run.course.steps:
        raise InvalidArgument(
            f"steps={run.course.steps}: {trainer.step} are done already; ask for more, or leave "
            "the number out"
        )
    if processes.first:
        write_run(place, run) if resume else _bring_about(place, run, loop)
    began = trainer.step
    if begin is not None:
        begin(trainer)
    loop.run()
    return _trained(run, loop, Path(folder), began, warnings)


def _tokenizer(run: Run, place: Path, *, resume: bool) -> AnyTokenizer:
    """A resumed run has its tokenizer in the folder."""
    kept = read_tokenizer(place) if resume else None
    return kept if kept is not None else tokenizer_of(run.source.tokenizer)


def _check_free(place: Path, *, force: bool) -> None:
    if place.is_file():
        raise InvalidArgument(f"{place}: it is a file; a folder is due")
    if not place.is_dir() or not any(place.iterdir()):
        return
    if not force:
        raise InvalidArgument(
            f"{place}: the folder is not empty; --resume goes on with what was trained there, "
            "--force replaces it"
        )
    if not (place / FILE).is_file():
        raise InvalidArgument(
            f"{place}: the folder is not empty and holds no trained model, so it is not replaced; "
            "take another one"
        )
    read_run(place)
    strange = sorted(path.name for path in place.iterdir() if path.name not in _WRITTEN)
    if strange:
        raise InvalidArgument(
            f"{place}: it holds {', '.join(strange[:3])}, which training did not write, so it is "
            "not replaced; move that elsewhere, or take another folder"
        )


def _bring_about(place: Path, run: Run, loop: Loop) -> None:
    """The folder, complete, with the untrained model: made beside its place, then renamed."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        _exchange(place, run, loop)
    except OSError as error:  # such as a folder that is a disk of its own
        raise InvalidArgument(
            f"{place} cannot be made ({error.strerror}): a new folder inside another one can"
        ) from None


def _exchange(place: Path, run: Run, loop: Loop) -> None:
    beside = place.with_name(f".{place.name}.{os.getpid()}.part")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        loop.folder = beside
        write_run(beside, run)
        (beside / METRICS).touch()
        loop.store()
        if place.is_dir() and any(place.iterdir()):
            gone = beside.with_suffix(".old")
            os.rename(place, gone)
            os.rename(beside, place)
            shutil.rmtree(gone, ignore_errors=True)
        else:
            os.rename(beside, place)
    finally:
        loop.folder = place
        shutil.rmtree(beside, ignore_errors=True)


def _trained(run: Run, loop: Loop, folder: Path, began: int, warnings: list[str]) -> Trained:
    trainer, place = loop.trainer, loop.folder
    lines = read_metrics(place) if trainer.processes.first else []
    steps = [line for line in lines if "loss" in line]
    measured = [line["measured"] for line in lines if "measured" in line]
    return Trained(
        run=run,
        folder=folder,
        steps=trainer.step,
        began=began,
        parameters=sum(p.numel() for p in trainer.model.parameters()),
        tokens=int(steps[-1]["tokens"]) if steps else 0,
        seconds=float(steps[-1]["seconds"]) if steps else 0.0,
        loss=float(steps[-1]["loss"]) if steps else None,
        measured=dict(measured[-1]) if measured else {},
        facts=dict(trainer.task.facts),
        interrupted=loop.interrupted,
        warnings=warnings,
    )
