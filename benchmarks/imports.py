"""What `import eyeline` takes beyond torch, and what `eyeline --help` takes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from .fresh import last_json, run_fresh
from .harness import alternate
from .report import Report
from .settings import Settings

TORCH, HELP = "import torch", "eyeline --help"
IMPORT = "import eyeline, after torch"
# Names are looked up when they are used: this is what `import eyeline` puts off, and it counts.
USED = "import eyeline and every name of its core, after torch"
_TIME = """
from time import perf_counter
start = perf_counter()
import torch
middle = perf_counter()
import eyeline
end = perf_counter()
from eyeline import Tokens, attention, pairs, parse, plan
used = perf_counter()
print('{"torch": %f, "eyeline": %f, "used": %f}' % (middle - start, end - middle, used - middle))
"""


def run(settings: Settings) -> None:
    report = Report("imports", "Starting", settings, ["what", "ms"], {"processes": "fresh"})
    command = str(Path(sys.executable).parent / "eyeline")

    def imported(which: str) -> Callable[[], float]:
        return lambda: last_json(run_fresh([sys.executable, "-c", _TIME], settings)[1])[which]

    times = alternate(
        {
            TORCH: imported("torch"),
            IMPORT: imported("eyeline"),
            USED: imported("used"),
            HELP: lambda: run_fresh([command, "--help"], settings)[0],
        },
        rounds=settings.rounds * (1 if settings.quick else 2),
        label="imports",
    )
    report.keep("fresh process", times)
    report.rows += [[name, found.median * 1e3] for name, found in times.items()]
    report.most(IMPORT, times[IMPORT].median, "s", 0.15)
    report.most(USED, times[USED].median, "s", 0.15)
    report.most(HELP, times[HELP].median, "s", 0.5)
    report.notes.append(f"{HELP}: the whole process, from its start to its end.")
    report.finish()
