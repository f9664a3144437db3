"""Peak memory beyond the arrays: a fresh process that works, minus one that only holds arrays.

Both import the same and do the same tiny warm-up first, so that libraries and thread pools count
in both. A module takes part by a function `probe(case, length)`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from statistics import median

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
    done = subprocess.run(
        [*command, str(settings.threads)],
        capture_output=True,
        text=True,
        env=settings.environment,
        cwd=Path(__file__).parent.parent,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr[-2000:]}")
    # Some peers print what they miss: the last line is ours.
    return int(json.loads(done.stdout.splitlines()[-1])["peak"])


def _peak_here() -> int:
    """The largest resident size of this process so far, in bytes (Linux).

    The usual getrusage would also tell of the parent's size at the time of the fork.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this system does not tell the peak of the resident size")


def main() -> None:
    import torch

    module, case, length, which, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    probe: Probe = import_module(f"benchmarks.{module}").probe(case, int(length))
    probe.warm()
    kept = probe.work() if which == "work" else probe.arrays()
    print(json.dumps({"peak": _peak_here()}))
    del kept


if __name__ == "__main__":
    main()
