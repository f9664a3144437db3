"""Texts as they come in, by argument, from a file or from stdin: the same text is the same string.

A byte-order mark at the beginning is no part of a text, and "\\r\\n" and "\\r" end a line as "\\n"
does. Imports nothing that takes time: the command reads its arguments with this.
"""

from __future__ import annotations

import sys
from os import PathLike
from pathlib import Path

from eyeline.errors import InvalidArgument

_MARK = "\ufeff"


def plain(text: str) -> str:
    """The text without a byte-order mark, each line ended by "\\n"."""
    return text.removeprefix(_MARK).replace("\r\n", "\n").replace("\r", "\n")


def decoded(data: bytes, source: str) -> str:
    """UTF-8 as ``plain`` text. Raises InvalidArgument with the line of what is not UTF-8.

    source: what the message calls it.
    """
    try:
        return plain(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidArgument(
            f"{source}, line {line}: not UTF-8 text (byte {error.start:,})"
        ) from None


def content(path: str | PathLike[str], source: str | None = None) -> bytes:
    """The bytes of a file. Raises InvalidArgument, with the reason, where it cannot be read.

    source: what the message calls it; its path, if None.
    """
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a name with a 0 in it
        reason = getattr(error, "strerror", None) or str(error) or "unreadable"
        said = source if source is not None else str(path)
        raise InvalidArgument(f"{said}: {reason.lower()}") from None


def read_file(path: str | PathLike[str], source: str | None = None) -> str:
    """The text of a file. Raises InvalidArgument as ``content`` and ``decoded`` do."""
    return decoded(content(path, source), source if source is not None else str(path))


def read_stdin() -> str:
    """The text that comes in by stdin. Raises InvalidArgument where that is closed or not UTF-8."""
    if sys.stdin is None or sys.stdin.closed:
        raise InvalidArgument("stdin: it is closed, and - reads the text from it")
    try:
        pipe = getattr(sys.stdin, "buffer", None)
        return decoded(pipe.read(), "stdin") if pipe is not None else plain(sys.stdin.read())
    except OSError as error:
        raise InvalidArgument(f"stdin: {(error.strerror or 'unreadable').lower()}") from None


def lines(text: str) -> list[str]:
    """Only a line's end ends it: other signs that Unicode calls so may stand in a text."""
    return text.removesuffix("\n").split("\n") if text else []
