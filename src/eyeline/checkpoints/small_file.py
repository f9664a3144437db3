"""Text and JSON out of small files that nobody vouches for."""

from __future__ import annotations

import json
from pathlib import Path

from eyeline.checkpoints.base import damaged

MAX_BYTES = 1 << 26


def read_text(path: Path) -> str:
    """The text of a file. Raises CheckpointError where it is missing, over 64 MiB or not UTF-8."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise damaged(path, f"larger than {MAX_BYTES:,} bytes")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise damaged(path, "the file is missing") from None
    except UnicodeDecodeError as error:
        raise damaged(path, f"not UTF-8 at byte {error.start:,}") from None


def read_object(path: Path, *, missing_ok: bool = False) -> dict[str, object]:
    """The object in a JSON file; empty where the file is missing and may be.

    Raises CheckpointError as `read_text` does, and where it is not JSON or not an object.
    """
    if missing_ok and not path.is_file():
        return {}
    value = _json(path)
    if not isinstance(value, dict):
        raise damaged(path, f"a JSON {type(value).__name__} where an object is due")
    return value


def read_list(path: Path) -> list[object]:
    """The list in a JSON file. Raises CheckpointError as `read_object` does."""
    value = _json(path)
    if not isinstance(value, list):
        raise damaged(path, f"a JSON {type(value).__name__} where a list is due")
    return value


def _json(path: Path) -> object:
    try:
        value: object = json.loads(read_text(path))
    except ValueError as error:
        raise damaged(path, f"not JSON: {error}") from None
    except RecursionError:
        raise damaged(path, "not JSON: nested too deeply") from None
    return value
