"""Writes Python's language reference into a text file: real English, on every machine with Python.

    python examples/language_reference.py reference.txt

It is what `help()` shows, from the standard library's pydoc_data.topics. Several topics repeat
paragraphs of others; here each paragraph stands once, so that a part that is held out from
training is not found, word for word, in the rest. --all keeps the repeated ones.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from pydoc_data.topics import topics


def paragraphs(text: str) -> list[str]:
    """The parts of a text between empty lines."""
    return [part.rstrip() for part in re.split(r"\n\s*\n", text.strip("\n")) if part.strip()]


def reference(*, repeated: bool = False) -> str:
    """All topics, one after the other, by name."""
    parts = [part for name in sorted(topics) for part in paragraphs(topics[name])]
    return "\n\n".join(parts if repeated else dict.fromkeys(parts)) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes Python's language reference into a file.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--all", action="store_true", help="keep paragraphs that stand twice")
    asked = parser.parse_args()
    text = reference(repeated=asked.all)
    asked.file.write_text(text, "utf-8")
    print(f"{asked.file}: {len(text.encode()):,} bytes")


if __name__ == "__main__":
    main()
