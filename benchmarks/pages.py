"""The tables that the README and the docs show, brought up to date with what was recorded.

A marked block is whole paragraphs of a result file. It is found again by the first word of its
first line, so a page decides which table of a file it shows and how many paragraphs of it.
"""

from __future__ import annotations

import re
from pathlib import Path

from .harness import say

ROOT = Path(__file__).parent.parent
_BLOCK = re.compile(
    r"(?P<head><!-- from (?P<file>\S+) -->\n```\w*\n)(?P<text>.*?)(?=```\n<!-- end -->)", re.DOTALL
)


def refresh(root: Path = ROOT) -> list[Path]:
    """Rewrites the marked blocks of every page. Returns the pages that changed."""
    changed = []
    for page in (root / "README.md", *sorted((root / "docs").glob("*.md"))):
        text = page.read_text("utf-8")
        new = _BLOCK.sub(lambda block: block["head"] + _again(root, block), text)
        if new != text:
            page.write_text(new, "utf-8")
            changed.append(page)
            say(f"{page.name}: its tables are those of the results now")
    return changed


def _again(root: Path, block: re.Match[str]) -> str:
    shown = block["text"].strip("\n").split("\n\n")
    recorded = (root / block["file"]).read_text("utf-8").strip("\n").split("\n\n")
    word = _first_word(shown[0])
    for start, paragraph in enumerate(recorded):
        if _first_word(paragraph) == word:
            return "\n\n".join(recorded[start : start + len(shown)]) + "\n"
    raise ValueError(f"{block['file']} has no paragraph that begins with {word!r}")


def _first_word(paragraph: str) -> str:
    return paragraph.split(maxsplit=1)[0]


if __name__ == "__main__":
    refresh()
