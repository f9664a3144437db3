"""What the guards read: the files of the source, what they import, and what they say they are."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "eyeline"

Function = ast.FunctionDef | ast.AsyncFunctionDef


def module_name(path: Path) -> str:
    dotted = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
    return dotted.removesuffix(".__init__")


FILES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


def is_face(module: str) -> bool:
    """Whether it is an ``__init__.py``, which gathers the names of its folder."""
    return FILES[module].name == "__init__.py"


def place(module: str) -> str:
    """Its path from src/eyeline: ``patterns/base.py``."""
    return FILES[module].relative_to(SOURCE).as_posix()


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(FILES[module].read_text("utf-8"))


def first_line(module: str) -> str:
    """The first line of its docstring: what the file is for."""
    return (ast.get_docstring(tree(module)) or "").split("\n", maxsplit=1)[0]


@cache
def imported(module: str, *, at_once: bool = False) -> frozenset[str]:
    """Our own modules that it imports, anywhere in it, or `at_once`, when it is imported."""
    names: set[str] = set()
    for node in tree(module).body if at_once else ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: a relative import hides where the arrow points"
            dotted = {f"{node.module}.{alias.name}" for alias in node.names}
            # `from package import module` means the module, all else the package itself.
            names |= {name if name in FILES else str(node.module) for name in dotted}
    return frozenset(name for name in names if name.split(".")[0] == "eyeline") - {module}


def nodes(kind: type[ast.AST] | tuple[type[ast.AST], ...]) -> Iterator[ast.AST]:
    """All nodes of a kind in all files."""
    for module in FILES:
        yield from (node for node in ast.walk(tree(module)) if isinstance(node, kind))


def behind(module: str, arrows: Mapping[str, Iterable[str]]) -> set[str]:
    """What it imports, what that imports, and so on: all that `arrows` lead to."""
    reached: set[str] = set()
    waiting = list(arrows[module])
    while waiting:
        target = waiting.pop()
        if target not in reached:
            reached.add(target)
            waiting.extend(arrows[target])
    return reached


def circles() -> list[set[str]]:
    """Modules that import each other, also late (in a function) or for types only."""
    arrows = {module: imported(module) for module in FILES}
    reached = {module: behind(module, arrows) for module in FILES}
    rings = {
        frozenset(other for other in reached[module] if module in reached[other])
        for module in FILES
        if module in reached[module]
    }
    return sorted((set(ring) for ring in rings), key=sorted)
