"""The ledgers: of skipped tests, each skip in the code and no other; of bugs that were missed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SKIPS = {"skip", "skipif", "xfail", "importorskip"}


def skips(source: str) -> set[str]:
    """The functions and classes of a file in which a skip stands; "" is the file itself."""
    return {
        getattr(node, "name", "")
        for node in ast.parse(source).body
        if any(isinstance(n, ast.Attribute) and n.attr in SKIPS for n in ast.walk(node))
    }


def ledger(name: str) -> list[list[str]]:
    lines = (TESTS / name).read_text("utf-8").splitlines()
    rows = [line for line in lines if line.startswith("|")][2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_the_ledger_names_every_skip() -> None:
    found = {
        f"{path.relative_to(TESTS).as_posix()}::{name}"
        for path in TESTS.rglob("*.py")
        for name in skips(path.read_text("utf-8"))
    }
    assert found == {row[0] for row in ledger("SKIPS.md")}


@pytest.mark.parametrize("name", ["SKIPS.md", "MISSED.md"])
def test_every_row_is_whole(name: str) -> None:
    for row in ledger(name):
        assert len(row) == 3, row
        assert all(row), row


@pytest.mark.parametrize("row", ledger("MISSED.md"), ids=lambda row: row[1].split("::")[-1])
def test_what_was_missed_is_found_by_a_test(row: list[str]) -> None:
    path, name = row[1].split("::")
    tree = ast.parse((TESTS / path).read_text("utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_skips_are_seen_wherever_they_stand() -> None:
    marked = "@pytest.mark.skipif(True)\ndef test_a(): ...\n"
    called = "def test_b():\n    if x:\n        pytest.skip('')\n\ndef test_c(): ...\n"
    whole = "pytestmark = pytest.mark.skip\n"
    assert skips(marked + called + whole) == {"test_a", "test_b", ""}
