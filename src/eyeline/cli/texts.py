"""The texts that a verb is asked about: words of the command line, the lines of a file, stdin."""

from __future__ import annotations

import sys
from pathlib import Path

from eyeline.errors import InvalidArgument


def read_texts(words: list[str] | None, file: str | None) -> list[str]:
    """The words; or the lines of a file, or of stdin where "-" stands for either.

    Raises InvalidArgument where neither or both are given, for a file that cannot be read, and
    for a text that is empty, with its place.
    """
    if bool(words) == (file is not None):
        what = "both were" if words else "nothing was"
        raise InvalidArgument(f"give one TEXT or several, or --file; {what} given")
    if words and "-" not in words:
        return _checked(words, "text {} of the command line")
    if words and len(words) > 1:
        raise InvalidArgument("- reads the texts from stdin, and stands alone")
    if file is None or file == "-":
        return _checked(_lines(sys.stdin.read()), "stdin, line {}")
    return _checked(_lines(_content(file)), f"--file {file}, line {{}}")


def _content(file: str) -> str:
    try:
        return Path(file).read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"--file {file}: not UTF-8 text (byte {error.start:,})") from None
    except OSError as error:
        raise InvalidArgument(f"--file {file}: {error.strerror}") from None


def _lines(text: str) -> list[str]:
    """Only a line's end ends it: other signs that Unicode calls so may stand in a text."""
    return text.removesuffix("\n").split("\n") if text else []


def _checked(texts: list[str], place: str) -> list[str]:
    if not texts:
        raise InvalidArgument(f"{place.partition(',')[0]}: there is no text in it")
    for number, text in enumerate(texts, 1):
        if not text.strip():
            raise InvalidArgument(f"{place.format(number)}: the text is empty")
    return texts
