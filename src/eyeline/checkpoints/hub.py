"""Repositories of the Hugging Face hub, as its own library keeps and fetches them."""

from __future__ import annotations

import re
from pathlib import Path

from eyeline.checkpoints.base import optional, shown
from eyeline.checkpoints.small_file import read_object
from eyeline.errors import EyelineError, FetchError

_FILES = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja")
_REPOSITORY = re.compile(r"[\w-][\w.-]{0,95}/[\w-][\w.-]{0,95}")


def is_repository(name: str) -> bool:
    """Whether `name` has the form owner/name."""
    return _REPOSITORY.fullmatch(name) is not None


def local_snapshot(repository: str) -> Path | None:
    """The repository in the local cache, where config and all weights are there; no network."""
    try:
        hub = optional("huggingface_hub")
    except EyelineError:
        return None
    try:
        folder = Path(hub.snapshot_download(repository, local_files_only=True))
    except (hub.errors.LocalEntryNotFoundError, hub.errors.HFValidationError, OSError):
        return None
    return folder if _whole(folder) else None


def _whole(folder: Path) -> bool:
    if not (folder / "config.json").is_file():
        return False
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return (folder / "model.safetensors").is_file()
    try:
        weights = read_object(index).get("weight_map")
    except EyelineError:
        return False
    files = set(weights.values()) if isinstance(weights, dict) else set()
    return bool(files) and all((folder / str(file)).is_file() for file in files)


def download_snapshot(repository: str) -> Path:
    """The repository, fetched into the Hugging Face cache: safetensors and JSON, no pickles.

    Raises FetchError, one line, where the hub cannot be reached or has no such repository.
    """
    hub = optional("huggingface_hub")
    try:
        return Path(hub.snapshot_download(repository, allow_patterns=list(_FILES)))
    except Exception as error:  # the hub's, the HTTP library's and the system's errors alike
        reason = shown(" ".join(str(error).split()), limit=160)
        raise FetchError(
            f"{repository}: the hub did not give it ({type(error).__name__}: {reason})"
        ) from None
