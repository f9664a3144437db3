"""Peak memory beyond the arrays: a fresh process that works, minus one that only holds arrays.

Both import the same and do the same tiny warm-up first, so that libraries and thread pools count
in both. A module takes part by a function `probe(case, length)`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from statistics import median

from eyeline.measuring.peaks import peak_resident

from .fresh import last_json, run_fresh
from .harness import say
from .settings import Settings


@dataclass(frozen=True)
class Probe:
    """warm: a tiny piece of the work. arrays: makes and returns inputs, outputs and gradients.

    work: makes the inputs and does the work; returns all that `arrays` returns.
    """

    warm: Callable[[], object]
    arrays: Callable[[], object]
    work: Callable[[], object]


def peak_beyond(module: str, case: str, *, length: int, settings: Settings) -> int:
    """Bytes at the peak of the work beyond its arrays: the median of three pairs of processes."""
    differences = []
    for _ in range(1 if settings.quick else 3):
        both = [_peak(module, case, length, which, settings) for which in ("work", "arrays")]
        differences.append(both[0] - both[1])
    found = int(median(differences))
    say(f"{module}: memory: {case} at {length:,}: {found / 2**20:.1f} MiB beyond the arrays")
    return found


def _peak(module: str, case: str, length: int, which: str, settings: Settings) -> int:
    command = [sys.executable, "-m", "benchmarks.memory", module, case, str(length), which]
    _, printed = run_fresh([*command, str(settings.threads)], settings)
    # Some peers print what they miss: the last line is ours.
    return int(last_json(printed)["peak"])


def main() -> None:
    import torch

    module, case, length, which, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    probe: Probe = import_module(f"benchmarks.{module}").probe(case, int(length))
    probe.warm()
    kept = probe.work() if which == "work" else probe.arrays()
    peak = peak_resident()
    if peak is None:
        raise RuntimeError("this system does not tell the peak of the resident size")
    print(json.dumps({"peak": peak}))
    del kept


if __name__ == "__main__":
    main()
