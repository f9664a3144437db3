"""Saving a model to a folder of our own, so that whatever moment it ends at, nothing is half."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from eyeline.checkpoints.base import optional
from eyeline.errors import InvalidArgument
from eyeline.loading.native_folder import (
    FILE,
    TOKENIZER_FILE,
    WEIGHTS,
    describe,
    tokenizer_entry,
)
from eyeline.loading.weights import own_names
from eyeline.models.base import Model
from eyeline.tokenizer import AnyTokenizer, Tokenizer


def save(
    model: Model,
    folder: str | Path,
    *,
    tokenizer: AnyTokenizer | None = None,
    notes: Mapping[str, Any] | None = None,
) -> Path:
    """Writes ``model.safetensors``, the tokenizer's file and ``eyeline.json``, in this order.

    ``eyeline.load(folder)`` gives the model back, bit for bit, with its patterns and mechanisms.
    The folder is made if it is not there. notes: anything of plain JSON, kept in ``eyeline.json``
    and not looked at. Returns the folder.

    Each file is written beside its place and then renamed, so a reader finds the old one or the
    new one, whole. A folder that held another model has no ``eyeline.json`` while its files are
    exchanged.

    Raises NotSupported for patterns that no text says (explicit, predicate), before anything is
    written, and InvalidArgument for notes that are no JSON and for another library's folder.
    """
    place = Path(folder)
    described = {**describe(model), "tokenizer": tokenizer_entry(tokenizer), "notes": notes}
    text = _json(described)
    _check_ours(place)
    state = model.state_dict()
    weights = {name: state[name].detach().cpu().contiguous() for name in own_names(model)}
    place.mkdir(parents=True, exist_ok=True)
    _withdraw(place, described)
    library = optional("safetensors.torch")
    write_whole(place / WEIGHTS, lambda path: library.save_file(weights, path))
    if isinstance(tokenizer, Tokenizer):
        rules = tokenizer.to_json()
        write_whole(place / TOKENIZER_FILE, lambda path: path.write_text(rules, "utf-8"))
    write_whole(place / FILE, lambda path: path.write_text(text, "utf-8"))
    return place


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Has a file written beside its place, brought to the disk, and renamed."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        beside.touch()
        mode = beside.stat().st_mode
        write(beside)
        beside.chmod(mode)  # whoever may read other files of the folder may read this one
        _synchronise_file(beside)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    _synchronise_folder(path.parent)


def _synchronise_file(path: Path) -> None:
    """Waits until the disk has what was written."""
    handle = os.open(path, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _synchronise_folder(path: Path) -> None:
    """Waits until the disk has the new names; Windows does not open folders so."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _check_ours(place: Path) -> None:
    """Refuses a folder whose weights belong to another library's description."""
    if (place / "config.json").exists() and not (place / FILE).exists():
        raise InvalidArgument(
            f"{place}: config.json there describes a model of another library, whose weights would "
            "be replaced; take another folder"
        )


def _withdraw(place: Path, described: Mapping[str, Any]) -> None:
    """Takes the description of another model away before its weights go."""
    file = place / FILE
    try:
        before = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return
    except ValueError:
        before = None
    same = isinstance(before, dict) and all(
        before.get(name) == described[name] for name in described if name != "notes"
    )
    if not same:
        file.unlink()


def _json(described: Mapping[str, Any]) -> str:
    try:
        return json.dumps(described, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"notes or choices that are no JSON: {error}") from None
