"""A piece of Python in a fresh process: what it prints, or how long the process takes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from .settings import Settings

_ROOT = Path(__file__).parent.parent


def run_fresh(command: Sequence[str], settings: Settings) -> tuple[float, str]:
    """Seconds from start to end of the process, and what it printed.

    Raises RuntimeError with the end of its error stream if it fails.
    """
    start = perf_counter()
    done = subprocess.run(
        command, capture_output=True, text=True, env=settings.environment, cwd=_ROOT
    )
    seconds = perf_counter() - start
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)[:200]}: {done.stderr[-2000:]}")
    return seconds, done.stdout


def last_json(text: str) -> dict[str, float]:
    """The JSON object on the last line."""
    found: dict[str, float] = json.loads(text.strip().splitlines()[-1])
    return found
