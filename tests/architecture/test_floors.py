"""The tower of docs/architecture.md is that of the imports: each file once, above what it takes."""

from __future__ import annotations

import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import pytest

from architecture import page
from architecture.source import FILES, SOURCE, circles, first_line, imported, is_face, place

TEXT = page.PAGE.read_text("utf-8")
ROWS = page.rows(TEXT)
REMEDY = "`make architecture` writes the tables anew"

# `&` on a pattern makes an expression, and `str` writes one: they cannot do without each other.
# The others stand here until they are gone.
CIRCLES = [
    {"patterns/base.py", "patterns/algebra.py", "patterns/text.py"},
    {"planning/parts.py", "planning/layout.py", "planning/planner.py", "planning/pictures.py"},
]
OPTIONAL = {
    "gguf", "huggingface_hub", "jinja2", "matplotlib", "rich", "safetensors", "tokenizers",
    "transformers", "typer",
}  # fmt: skip


def heights() -> dict[str, float]:
    """How high each file stands: its row, and for a face, just above the last of its folder."""
    rank: dict[str, float] = {path: number for number, (path, _) in enumerate(ROWS)}
    for face in filter(is_face, FILES):
        folder = place(face).removesuffix("__init__.py")
        rank[place(face)] = max(rank[path] for path, _ in ROWS if path.startswith(folder)) + 0.5
    return rank


def test_the_page_names_each_file_once() -> None:
    assert sorted(path for path, _ in ROWS) == sorted(page.HOMES), REMEDY


@pytest.mark.parametrize(("path", "holds"), ROWS, ids=[path for path, _ in ROWS])
def test_a_row_says_what_the_file_says(path: str, holds: str) -> None:
    assert holds == first_line(page.HOMES[path]), REMEDY


@pytest.mark.parametrize("module", FILES)
def test_no_arrow_points_up(module: str) -> None:
    height, own = heights(), place(module)
    for target in map(place, imported(module)):
        assert target != "__init__.py", f"{module} imports the table of contents"
        together = any({own, target} <= ring for ring in CIRCLES)
        assert together or height[target] < height[own], f"{own} imports {target}, which is above"


def test_a_room_is_one_stretch_of_the_tower() -> None:
    rooms = [path.split("/")[0] for path, _ in ROWS]
    entered = [room for before, room in pairwise(["", *rooms]) if room != before]
    assert len(entered) == len(set(entered)), entered
    table = TEXT.split("## The rooms")[1].split("## ")[0]
    named = re.findall(r"`([\w/.]+)`", "".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)))
    assert [name.strip("/") for name in named] == entered


def test_files_named_in_the_text_exist() -> None:
    named = set(re.findall(r"`([\w/]+\.py)`", TEXT))
    assert not [path for path in named if not (SOURCE / path).is_file()]


def test_files_in_a_circle_are_the_known_ones() -> None:
    rings = [{*map(place, ring)} for ring in circles()]
    assert [ring for ring in rings if not any(ring <= known for known in CIRCLES)] == []


def test_no_import_goes_in_a_circle() -> None:
    arrows = {module: imported(module, at_once=True) for module in FILES}
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_new_files_are_placed_above_what_they_import() -> None:
    rows = [f"| `{path}` | {holds.replace('|', chr(92) + '|')} |\n" for path, holds in ROWS]
    without = TEXT.replace(rows[-1], "").replace(rows[-3], "")
    swapped = without.replace(rows[0] + rows[1], rows[1] + rows[0])
    assert sorted(page.rows(page.refreshed(swapped))) == sorted(ROWS)
    assert page.refreshed(TEXT) == TEXT


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_eyeline_imports_no_optional_package() -> None:
    loaded = run(
        "import sys, torch; before = set(sys.modules)\n"
        "import eyeline; print(*sorted(m for m in set(sys.modules) - before if '.' not in m))"
    )
    assert not OPTIONAL & set(loaded.split())


def test_help_does_not_import_torch() -> None:
    loaded = run(
        "import io, sys; sys.argv = ['eyeline', '--help']\n"
        "from contextlib import redirect_stdout\n"
        "from eyeline.cli import main\n"
        "with redirect_stdout(io.StringIO()) as shown:\n"
        "    try: main()\n"
        "    except SystemExit as stop: assert stop.code in (0, None), stop.code\n"
        "assert 'generate' in shown.getvalue(), shown.getvalue()\n"
        "print(*sys.modules)"
    )
    assert "torch" not in loaded.split()
