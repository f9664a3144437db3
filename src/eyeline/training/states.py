"""The state of training on disk: written whole or not at all, and the last two are kept.

    training/run.json                        what the run is
    training/state-00000100/tensors.safetensors   weights, and what the optimizer remembers
    training/state-00000100/state.json            the step, and what the data were

A state is written in a folder beside its place, brought to the disk, and then renamed, so that a
folder of that name is complete whatever moment the process ends at.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from eyeline.checkpoints.base import damaged, optional, read_object
from eyeline.checkpoints.folder import SafeTensors
from eyeline.errors import CheckpointError, EyelineError
from eyeline.loading.saver import write_whole
from eyeline.training.run import Run
from eyeline.training.trainer import Trainer, moments, restore

FOLDER, KEPT = "training", 2
_TENSORS, _STATE, _RUN = "tensors.safetensors", "state.json", "run.json"
_NAME = re.compile(r"state-(\d{8,})")


def write_run(folder: Path, run: Run) -> None:
    """Stores what the run is."""
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    text = json.dumps(run.as_json(), indent=1, ensure_ascii=False) + "\n"
    write_whole(folder / FOLDER / _RUN, lambda path: path.write_text(text, "utf-8"))


def read_run(folder: Path) -> Run:
    """What the run is. Raises CheckpointError where nothing was trained."""
    if not (folder / FOLDER / _RUN).is_file():
        raise CheckpointError(f"{folder}: no training was begun there that could go on")
    return Run.from_json(read_object(folder / FOLDER / _RUN))


def write_state(folder: Path, trainer: Trainer) -> None:
    """Stores the state after the trainer's last step, and takes away all but the last two."""
    place = folder / FOLDER / f"state-{trainer.step:08d}"
    beside = place.with_name(f".{place.name}.part")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    tensors = _weights(trainer.model) | moments(trainer.model, trainer.optimizer)
    stored = {name: x.detach().cpu().contiguous() for name, x in tensors.items()}
    library = optional("safetensors.torch")
    write_whole(beside / _TENSORS, lambda path: library.save_file(stored, path))
    told = json.dumps({"step": trainer.step, "data": trainer.task.digest}) + "\n"
    write_whole(beside / _STATE, lambda path: path.write_text(told, "utf-8"))
    if place.exists():  # the same step, written again
        _remove(place)
    _rename(beside, place)
    for old in states(folder)[:-KEPT]:
        _remove(old)


def read_state(folder: Path, trainer: Trainer) -> list[str]:
    """Brings the trainer to the last state that can be read; what was wrong with later ones.

    Raises CheckpointError if none can be read.
    """
    wrong: list[str] = []
    for place in reversed(states(folder)):
        try:
            _restore(place, trainer)
            return wrong
        except (EyelineError, OSError) as error:
            wrong.append(str(error))
    reason = wrong[0] if wrong else "there is no state to go on from"
    raise CheckpointError(f"{folder}: {reason}")


def states(folder: Path) -> list[Path]:
    """The complete states, from the oldest to the newest."""
    found = [p for p in (folder / FOLDER).glob("state-*") if _NAME.fullmatch(p.name)]
    return sorted(found, key=lambda path: int(path.name.removeprefix("state-")))


def last_step(folder: Path) -> int:
    """The step of the newest state; 0 if there is none."""
    found = states(folder)
    return int(found[-1].name.removeprefix("state-")) if found else 0


def _restore(place: Path, trainer: Trainer) -> None:
    told = read_object(place / _STATE)
    step = _step(place, told, trainer)
    tensors = SafeTensors({place / _TENSORS: None})
    weights = _weights(trainer.model)
    read = {name: tensors.read(name) for name in tensors}
    missing = sorted(set(weights) - set(read))
    if missing:
        raise damaged(place, f"it has no {missing[0]}")
    for name, mine in weights.items():
        if read[name].shape != mine.shape:
            raise damaged(place, f"{name} is {tuple(read[name].shape)}, not {tuple(mine.shape)}")
    restore(trainer.model, trainer.optimizer, {k: v for k, v in read.items() if k not in weights})
    with torch.no_grad():
        for name, mine in weights.items():
            mine.copy_(read[name])
    trainer.step = step


def _step(place: Path, told: Mapping[str, object], trainer: Trainer) -> int:
    step = told.get("step")
    if not isinstance(step, int) or step < 0:
        raise damaged(place, f"step={step!r:.40}")
    if told.get("data") != trainer.task.digest:
        raise CheckpointError(
            f"{place}: the data are not those that this training began with; go on with the same "
            "files, or begin anew elsewhere"
        )
    return step


def _weights(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, each once: tied ones are one."""
    named = [*model.named_parameters(), *model.named_buffers()]
    stored = model.state_dict().keys()
    return {name: tensor for name, tensor in named if name in stored}


def _rename(beside: Path, place: Path) -> None:
    """The moment from which on the state is there."""
    os.rename(beside, place)


def _remove(place: Path) -> None:
    """Under another name first, so that what is half removed is no state."""
    gone = place.with_name(f".{place.name}.old")
    os.rename(place, gone)
    shutil.rmtree(gone, ignore_errors=True)
