"""The pattern on docs/own_pattern.md stays as short as the page promises."""

from __future__ import annotations

import ast
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "own_pattern.md"


def test_the_class_and_its_helper_take_at_most_fifteen_lines() -> None:
    first = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[0]
    tree = ast.parse(first).body
    own = [node for node in tree if not isinstance(node, ast.Import | ast.ImportFrom)]
    text = first.splitlines()
    written = [
        line
        for node in own
        for line in text[min(_starts(node)) - 1 : node.end_lineno]
        if line.strip()
    ]
    assert 0 < len(written) <= 15, "\n".join(written)


def _starts(node: ast.stmt) -> list[int]:
    return [node.lineno, *(mark.lineno for mark in getattr(node, "decorator_list", []))]
