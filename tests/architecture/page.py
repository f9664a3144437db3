"""docs/architecture.md: its tables of files, read as the order of the floors, and written anew.

A row names a file from src/eyeline and what the first line of its docstring says. The order of all
rows is the order of the floors. Headings, texts and the order of the tables are written by hand;
``make architecture`` puts files that are new into the table of their neighbours, takes out those
that are gone, and within a table lets a file follow what it imports.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import chain

from architecture.source import FILES, ROOT, behind, first_line, imported, is_face, place

PAGE = ROOT / "docs" / "architecture.md"
HEAD = "| file | what it holds |\n|---|---|\n"
ROW = r"\| `([\w/]+\.py)` \| (.*) \|\n"
TABLE = re.compile(f"{re.escape(HEAD)}((?:{ROW})+)")
HOMES = {place(module): module for module in FILES if not is_face(module)}
"""The modules that stand in the tables, by their paths. Faces stand at the end of their folders."""


def rows(text: str) -> list[tuple[str, str]]:
    """(file, what it holds), from the ground up."""
    parts = chain.from_iterable(re.findall(ROW, table[1]) for table in TABLE.finditer(text))
    return [(path, holds.replace(r"\|", "|")) for path, holds in parts]


def refreshed(text: str) -> str:
    """The page with its tables as the source is now."""
    tables = [[path for path, _ in re.findall(ROW, m[1])] for m in TABLE.finditer(text)]
    lists = iter(_sorted(files) for files in _placed(tables))
    return TABLE.sub(lambda _: HEAD + "".join(map(_row, next(lists))), text)


def _row(path: str) -> str:
    holds = first_line(HOMES[path]).replace("|", r"\|")
    return f"| `{path}` | {holds} |\n"


def _placed(tables: Sequence[list[str]]) -> list[list[str]]:
    """The files of each table: those that are still there, then the new ones, by name."""
    homes = {path: at for at, files in enumerate(tables) for path in files}
    kept = [[path for path in files if path in HOMES] for files in tables]
    for path in sorted(HOMES.keys() - homes.keys()):
        kept[_table_of(path, homes)].append(path)
    return kept


def _table_of(path: str, homes: dict[str, int]) -> int:
    """Where most files of its folder stand, or of the room, or the file that the room was."""
    for same in (_folder, _room):
        near = [at for other, at in homes.items() if same(other) == same(path)]
        if near:
            return max(set(near), key=near.count)
    raise ValueError(f"{path} has no neighbours: begin a table for it in {PAGE.name}")


def _folder(path: str) -> str:
    return path.rpartition("/")[0] or path


def _room(path: str) -> str:
    return path.split("/")[0].removesuffix(".py")


def _sorted(files: Sequence[str]) -> list[str]:
    """Each file after those that it imports, otherwise as given; in a circle, at once or late."""
    at = {HOMES[path]: number for number, path in enumerate(files)}
    below = {module: imported(module) & at.keys() for module in at}
    reached = {module: behind(module, below) for module in at}
    waits = {
        module: {other for other in below[module] if module not in reached[other]}
        | (imported(module, at_once=True) & at.keys())
        for module in at
    }
    ready: list[tuple[int, str]] = []
    order: list[str] = []
    waiting = set(at)
    while waiting or ready:
        for module in [module for module in waiting if waits[module] <= set(order)]:
            heappush(ready, (at[module], module))
            waiting.remove(module)
        order.append(heappop(ready)[1])
    return [place(module) for module in order]
