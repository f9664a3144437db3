"""The floors of the design hold: no module imports from a floor above it, and none in a circle."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "eyeline"

# From the ground up. A line may import from the lines above it; names on one line, not each other.
FLOORS = """
    errors hashing
    tokens
    checks
    patterns
    encodings
    scores
    caches
    checkpoints
    tokenizer sampling
    planning
    kernels
    exact
    mechanisms
    functional
    layers
    models
    loading
    generation embedding
    translation
    training integrations measuring
    viewer
    cli
    testing
"""
RANK = {part: rank for rank, line in enumerate(FLOORS.split("\n")) for part in line.split()}
OPTIONAL = {
    "gguf", "huggingface_hub", "jinja2", "matplotlib", "rich", "safetensors", "tokenizers",
    "transformers", "typer",
}  # fmt: skip


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        yield ".".join(parts).removesuffix(".__init__"), path


MODULES = dict(modules())


def imported(path: Path, *, at_once: bool = False) -> set[str]:
    """Our own modules that a file imports, anywhere in it, or `at_once`, when it is imported."""
    found: set[str] = set()
    tree = ast.parse(path.read_text("utf-8"))
    for node in tree.body if at_once else ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import hides where the arrow points"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            # `from package import module` means the module, all else the package itself.
            found |= {name if name in MODULES else str(node.module) for name in names}
    return {name for name in found if name.split(".")[0] == "eyeline"}


def part(module: str) -> str:
    """The floor's folder or file: `eyeline.caches.base` is in `caches`."""
    return module.split(".")[1] if "." in module else ""


@pytest.mark.parametrize("module", [m for m in MODULES if part(m) not in ("", "__main__")])
def test_no_arrow_points_up(module: str) -> None:
    assert part(module) in RANK, f"{part(module)} stands on no floor: add it to the table"
    for target in imported(MODULES[module]):
        assert part(target), f"{module} imports the table of contents, {target}"
        if part(target) != part(module):
            assert RANK[part(target)] < RANK[part(module)], f"{module} imports {target}"


def test_no_import_goes_in_a_circle() -> None:
    arrows = {module: imported(path, at_once=True) for module, path in MODULES.items()}
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


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
