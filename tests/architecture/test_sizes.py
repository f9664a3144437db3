"""The house keeps its measure: few files of a middling size, short functions, one name a thing.

Each line of SIZES is measured in the source. A bound only ever goes down, until it is the target.
Run as a file, this one prints them: ``PYTHONPATH=tests python tests/architecture/test_sizes.py``.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import pytest

from architecture.source import FILES, Function, behind, circles, imported, nodes

SMALL = 40  # lines of a file that might stand in another
POSITIONAL = 5
NOT_SHOWN = {"__init__.py", "__main__.py"}
MODULES = [module for module in FILES if FILES[module].name not in NOT_SHOWN]


def file_lines() -> list[int]:
    return [len(FILES[module].read_text("utf-8").splitlines()) for module in FILES]


def small_files() -> list[str]:
    return [
        module for module in MODULES if len(FILES[module].read_text("utf-8").splitlines()) < SMALL
    ]


def imported_once() -> list[str]:
    """Modules that one other imports: they may be a part of it. Faces gather, they do not count."""
    users = Counter(target for module in FILES for target in imported(module))
    return [module for module in MODULES if users[module] == 1]


def repeated(names: list[str]) -> list[str]:
    return [name for name, times in Counter(names).items() if times > 1]


def class_names() -> list[str]:
    return repeated([node.name for node in nodes(ast.ClassDef) if isinstance(node, ast.ClassDef)])


def file_names() -> list[str]:
    return repeated([FILES[module].name for module in MODULES])


def functions() -> list[Function]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in nodes(kinds) if isinstance(node, kinds)]


def function_lines() -> list[int]:
    return sorted((node.end_lineno or 0) - node.lineno + 1 for node in functions())


def share(of: list[int], part: float) -> int:
    return of[int(part * len(of))]


def many_positional() -> list[str]:
    """Functions of more than five arguments that may be given by place."""
    return [node.name for node in functions() if len(by_place(node)) > POSITIONAL]


def by_place(node: Function) -> list[str]:
    names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def files_of_a_mechanism() -> dict[str, int]:
    """For each mechanism's module, how many files of its floor it is made of, its own with them."""
    inside = {
        module: [target for target in imported(module) if target in MODULES and on_floor(target)]
        for module in MODULES
        if on_floor(module)
    }
    homes = {target for target in imported("eyeline.mechanisms") if target in inside} - SERVICES
    return {home: 1 + len(behind(home, inside) - SERVICES) for home in homes}


# What stands on the floor of mechanisms for all of them.
SERVICES = {f"eyeline.mechanisms.{name}" for name in ("base", "recipes", "auxiliary")}


def on_floor(module: str) -> bool:
    return module.startswith("eyeline.mechanisms.")


@dataclass(frozen=True)
class Size:
    """What is measured, the bound that holds now, and the target that it comes down to."""

    name: str
    measured: Callable[[], float]
    bound: float
    target: float


SIZES = [
    Size("files", lambda: len(FILES), 218, 200),
    Size("lines", lambda: sum(file_lines()), 40_450, 37_000),
    Size("median file", lambda: median(file_lines()), 177, 150),
    Size("files under 40 lines", lambda: len(small_files()), 4, 4),
    Size("modules imported by one other", lambda: len(imported_once()), 56, 50),
    Size("class names used twice", lambda: len(class_names()), 24, 6),
    Size("file names used twice", lambda: len(file_names()), 7, 7),
    Size("circles", lambda: len(circles()), 2, 1),
    Size("files of a mechanism", lambda: max(files_of_a_mechanism().values()), 7, 4),
    Size("median function", lambda: median(function_lines()), 6, 6),
    Size("90 % of functions", lambda: share(function_lines(), 0.9), 19, 19),
    Size("longest function", lambda: max(function_lines()), 82, 82),
    Size("more than 5 arguments by place", lambda: len(many_positional()), 38, 38),
]
SMALLEST_MEDIAN = 110  # lines: below it the house is made of scraps


@pytest.mark.parametrize("size", SIZES, ids=lambda size: size.name)
def test_a_size(size: Size) -> None:
    assert size.target <= size.bound, "a bound below its target: the bound is the target now"
    assert size.measured() <= size.bound


def test_files_are_not_scraps() -> None:
    assert median(file_lines()) >= SMALLEST_MEDIAN


if __name__ == "__main__":
    for size in SIZES:
        print(f"{size.name:32} {size.measured():>8,} of {size.bound:>8,}, target {size.target:>8,}")
