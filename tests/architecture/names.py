"""The public names: what each face gives, as it stands in public_names.txt and in the source.

A face is a package's ``__init__.py``, or a loose file that the table of contents names.
"""

from __future__ import annotations

import ast
from pathlib import Path

from architecture.source import FILES, is_face, tree

LIST = Path(__file__).with_name("public_names.txt")
OTHERS = {"eyeline.errors", "eyeline.sampling"}  # loose files that users import names from


def faces() -> dict[str, set[str]]:
    """The public names of each face. Private and internal loose files have none."""
    loose = {home for home in FILES if not is_face(home) and home in _homes() | OTHERS}
    names = {face: _all(face) or _given(face) for face in FILES if is_face(face)}
    names |= {face: _made(face) | _given(face) for face in loose}
    return {face: names[face] for face in sorted(names) if names[face]}


def listed() -> dict[str, set[str]]:
    """The same, as the list has it."""
    blocks = [block.split() for block in LIST.read_text("utf-8").split("\n\n")]
    return {face: set(names) for face, *names in blocks}


def write() -> None:
    """The list, written anew from the source. The difference is for a reader to judge."""
    blocks = ["\n    ".join([face, *sorted(names)]) for face, names in faces().items()]
    LIST.write_text("\n\n".join(blocks) + "\n", "utf-8")


def _homes() -> set[str]:
    """Where the table of contents takes its names from."""
    imports = (node for node in ast.walk(tree("eyeline")) if isinstance(node, ast.ImportFrom))
    return {str(node.module) for node in imports}


def _all(face: str) -> set[str]:
    """What ``__all__`` lists in words. Where it is derived, the imports for types say it."""
    for node in tree(face).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value)) if isinstance(node.value, ast.List) else set()
    return set()


def _given(face: str) -> set[str]:
    """Names that are exported as mypy asks for it: ``import name as name``."""
    return {
        alias.name
        for node in ast.walk(tree(face))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name == alias.asname
    }


def _made(module: str) -> set[str]:
    """Classes, functions and constants of a file that do not begin with ``_``."""
    names: set[str] = set()
    for node in tree(module).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return {name for name in names if not name.startswith("_")}
