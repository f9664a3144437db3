"""metrics.jsonl: a line for each step and for each time the model was measured.

    {"step": 100, "loss": 1.62, "rate": 0.002, "norm": 0.41, "tokens": 409600, "seconds": 41.2}
    {"step": 100, "measured": {"loss": 1.71, "bits_per_byte": 2.47, "perplexity": 5.53}}

Loss in nats per target, and "auxiliary" beside it where a mechanism asks for one; tokens and
seconds since the beginning, over all that was resumed. A line is appended with one write; what a
kill leaves of a line, and lines of steps that will be done again, are dropped when the run is
resumed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO, final

from eyeline.saving import write_whole

FILE = "metrics.jsonl"


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The complete lines, in order; [] if there is no file."""
    path = folder / FILE
    if not path.is_file():
        return []
    found = []
    for line in path.read_bytes().split(b"\n")[:-1]:  # a last line without its end is half
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and isinstance(entry.get("step"), int):
            found.append(entry)
    return found


@final
class Metrics:
    """Appends to the file of a folder, after the lines up to a step.

    tokens, seconds: as the last line told them, to be counted on from.
    """

    def __init__(self, folder: Path, *, step: int) -> None:
        kept = [entry for entry in read_metrics(folder) if entry["step"] <= step]
        text = "".join(_line(entry) for entry in kept)
        write_whole(folder / FILE, lambda path: path.write_text(text, "utf-8"))
        steps = [entry for entry in kept if "tokens" in entry]
        self.tokens = int(steps[-1]["tokens"]) if steps else 0
        self.seconds = float(steps[-1]["seconds"]) if steps else 0.0
        self.measured = {entry["step"] for entry in kept if "measured" in entry}
        self._file: TextIO = (folder / FILE).open("a", encoding="utf-8")

    def add(self, entry: Mapping[str, Any]) -> None:
        """Appends a line."""
        self._file.write(_line(entry))
        self._file.flush()

    def synchronise(self) -> None:
        """Waits until the disk has all lines."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _line(entry: Mapping[str, Any]) -> str:
    return json.dumps(_short(entry)) + "\n"


def _short(value: Any) -> Any:
    """Numbers with six digits, which is more than they mean."""
    if isinstance(value, Mapping):
        return {name: _short(each) for name, each in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value
