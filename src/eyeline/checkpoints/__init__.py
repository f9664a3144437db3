"""Model files: named tensors, config and tokenizer out of GGUF files and Hugging Face folders."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from eyeline.checkpoints.base import (
    PICKLES,
    BytePairs,
    Checkpoint,
    TensorInfo,
    Tensors,
    TokenizerFile,
    TokenizerSpec,
    refuse_pickle,
)
from eyeline.checkpoints.folder import open_folder
from eyeline.checkpoints.gguf import is_gguf, open_gguf
from eyeline.errors import CheckpointError

__all__ = [
    "open",
    "Checkpoint",
    "Tensors",
    "TensorInfo",
    "TokenizerSpec",
    "BytePairs",
    "TokenizerFile",
]


def open(path: str | PathLike[str]) -> Checkpoint:
    """The checkpoint at `path`: a GGUF file, told by its content, or a Hugging Face folder.

    A folder that holds no safetensors but exactly one GGUF file stands for that file. Raises
    CheckpointError in one line for anything else; pickled weights are never opened.
    """
    place = Path(path)
    try:
        return _open_folder(place) if place.is_dir() else _open_file(place)
    except OSError as error:
        raise CheckpointError(f"{place}: {error.strerror or error}") from None


def _open_file(path: Path) -> Checkpoint:
    if path.suffix.lower() in PICKLES:
        raise refuse_pickle(path)
    if is_gguf(path):
        return open_gguf(path)
    if path.suffix == ".safetensors":
        raise CheckpointError(f"{path}: give its folder, {path.parent}, where config.json lies too")
    raise CheckpointError(f"{path}: not a GGUF file; GGUF files and Hugging Face folders are read")


def _open_folder(path: Path) -> Checkpoint:
    ggufs = sorted(p for p in path.iterdir() if p.suffix.lower() == ".gguf")
    if not ggufs or any(path.glob("*.safetensors")):
        return open_folder(path)
    if len(ggufs) > 1:
        names = ", ".join(p.name for p in ggufs[:5])
        raise CheckpointError(f"{path}: {len(ggufs)} GGUF files, give one of them: {names}")
    return _open_file(ggufs[0])
