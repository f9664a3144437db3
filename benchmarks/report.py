"""What a group found: figures with their bars, as raw numbers and as a table to read."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from eyeline.measuring.timing import Ratio, Times

from . import machine
from .harness import cell, cells, say
from .settings import Settings

# A machine that others used more than this is not one to measure on.
_BUSY = 0.05


@dataclass(frozen=True)
class Figure:
    """One number that has a bar: value >= bar if at_least, else value <= bar. bar None: no bar."""

    name: str
    value: float
    unit: str
    bar: float | None = None
    at_least: bool = True
    low: float | None = None
    high: float | None = None

    @property
    def met(self) -> bool | None:
        if self.bar is None:
            return None
        return self.value >= self.bar if self.at_least else self.value <= self.bar

    def row(self, *, judged: bool) -> list[str]:
        spread = "" if self.low is None else f"{cell(self.low)} … {cell(self.high)}"
        sign = "≥" if self.at_least else "≤"
        bar = "" if self.bar is None else f"{sign} {cell(self.bar)} {self.unit}"
        verdict = {None: "", True: "met", False: "NOT MET"}[self.met]
        if verdict and not judged:
            verdict = "not judged"
        return [self.name, f"{cell(self.value)} {self.unit}", spread, bar, verdict]


@dataclass
class Report:
    """A group's results. rows: a table about the contenders, its columns named by `columns`."""

    name: str
    title: str
    settings: Settings
    columns: list[str]
    sizes: dict[str, object]
    rows: list[list[object]] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    raw: dict[str, list[float]] = field(default_factory=dict)
    watch: machine.Watch = field(default_factory=machine.Watch)

    def keep(self, label: str, times: dict[str, Times]) -> None:
        """The seconds of every round, for the raw file."""
        self.raw |= {f"{label}: {name}": list(found.seconds) for name, found in times.items()}

    def ratio(self, name: str, found: Ratio, bar: float | None = None) -> None:
        """A figure "so many times", with its range over the rounds."""
        self.figures.append(Figure(name, found.value, "×", bar, True, found.low, found.high))

    def most(self, name: str, value: float, unit: str, bar: float | None = None) -> None:
        """A figure that may be at most its bar."""
        self.figures.append(Figure(name, value, unit, bar, at_least=False))

    def finish(self) -> None:
        """Prints the table; records it if there is where to, and the machine was not busy."""
        others = self.watch.others()
        text = self._text(others)
        print(text, flush=True)
        out = self.settings.out
        if out is None:
            say(f"{self.name}: not recorded")
            return
        if others > _BUSY and not self.settings.busy:
            say(f"{self.name}: not recorded: others used {others:.0%} of the processors meanwhile")
            return
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{self.name}.txt").write_text(text, encoding="utf-8")
        raw = json.dumps(self._values(others), indent=1, ensure_ascii=False)
        (out / f"{self.name}.json").write_text(raw + "\n", encoding="utf-8")

    def _values(self, others: float) -> dict[str, object]:
        return {
            "name": self.name,
            "title": self.title,
            "date": _today(),
            "machine": machine.describe(),
            "versions": machine.versions(),
            "used_by_others": round(others, 4),
            "quick": self.settings.quick,
            "rounds": self.settings.rounds,
            "sizes": self.sizes,
            "columns": self.columns,
            "rows": self.rows,
            "figures": [{**asdict(figure), "met": figure.met} for figure in self.figures],
            "notes": self.notes,
            "seconds": self.raw,
        }

    def _text(self, others: float) -> str:
        here = machine.describe()
        where = f"{here['processor']}, {here['cores']} cores, {here['memory_gib']} GiB"
        judged = not self.settings.quick
        lines = [
            self.title,
            f"{_today()} · {where} · {here['system']} {here['vectors']} · Python {here['python']}",
            " · ".join(f"{name} {found}" for name, found in machine.versions().items()),
            f"{here['threads']} threads for everybody · median of {self.settings.rounds} "
            f"alternating rounds after a warm-up · used by others meanwhile: {others:.1%}",
            " · ".join(f"{name} {cell(value)}" for name, value in self.sizes.items()),
            "",
            *table(self.columns, [cells(row) for row in self.rows]),
            "",
            *table(
                ["figure", "value", "range", "bar", "verdict"],
                [figure.row(judged=judged) for figure in self.figures],
            ),
        ]
        if self.settings.quick:
            lines.insert(1, "QUICK RUN: tiny sizes, figures without meaning")
        return "\n".join([*lines, *("", *self.notes)[: None if self.notes else 0]]) + "\n"


def table(columns: list[str], rows: list[list[str]]) -> list[str]:
    """Lines with columns of equal width, the first to the left and the others to the right."""
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]

    def line(row: list[str]) -> str:
        first, *others = zip(row, widths, strict=True)
        return "  ".join([first[0].ljust(first[1]), *(c.rjust(w) for c, w in others)]).rstrip()

    return [line(columns), line(["─" * width for width in widths]), *map(line, rows)]


def summary(folder: Path) -> str:
    """All figures that have a bar, from the raw files in the folder."""
    rows = []
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        for values in found["figures"]:
            met = values.pop("met")
            if met is not None:
                row = Figure(**values).row(judged=not found["quick"])
                rows.append([found["name"], *row, found["date"]])
    return "\n".join(table(["group", "figure", "value", "range", "bar", "verdict", "date"], rows))


def _today() -> str:
    return datetime.now(timezone.utc).date().isoformat()
