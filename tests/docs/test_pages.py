"""Every Python snippet of the README and the docs runs, from top to bottom of its page."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.pages import refresh

from eyeline.mechanisms.base import MECHANISMS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MARKER = re.compile(
    r"<!-- from (?P<file>\S+) -->\n```\w*\n(?P<text>.*?)```\n<!-- end -->", re.DOTALL
)


@pytest.fixture
def own_words(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a page imports and registers is forgotten after it."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(ROOT)
    words, modules = set(MECHANISMS), set(sys.modules)
    yield
    for word in set(MECHANISMS) - words:
        del MECHANISMS[word]
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(ROOT / "examples")):
            del sys.modules[name]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_snippets_run(
    page: Path, capsys: pytest.CaptureFixture[str], own_words: None
) -> None:
    snippets = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    assert snippets, "a page without one snippet"
    scope: dict[str, object] = {"__name__": page.stem}
    for snippet in snippets:
        # As a user would run it, without this file's __future__. Our own pages, not a user's text.
        exec(compile(snippet, str(page), "exec", dont_inherit=True), scope)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_come_from_result_files(page: Path) -> None:
    text = page.read_text("utf-8")
    found = list(MARKER.finditer(text))
    assert len(found) == text.count("<!-- from "), "a marker that encloses no block"
    for match in found:
        source = (ROOT / match["file"]).read_text("utf-8")
        assert match["text"] in source, f"{page.name} differs from {match['file']}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_tables_follow_the_results(tmp_path: Path) -> None:
    block = "<!-- from figures.txt -->\n```text\nwith  ms\n\nfast  {}\n```\n<!-- end -->\n"
    (tmp_path / "README.md").write_text("Before\n" + block.format(7) + "After\n", "utf-8")
    (tmp_path / "figures.txt").write_text("Title\n\nwith  ms\n\nfast  5\n\nnote\n", "utf-8")
    assert refresh(tmp_path) == [tmp_path / "README.md"]
    assert (tmp_path / "README.md").read_text("utf-8") == f"Before\n{block.format(5)}After\n"
    assert not refresh(tmp_path)
