"""What the machine is, what it can do, and whether anybody else was using it meanwhile."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from eyeline.measuring.timing import repeated_median, timed
from eyeline.planning.dense import installed

_PACKAGES = ("eyeline", "torch", "transformers", "local-attention", "einops", "numpy")


def describe() -> dict[str, object]:
    """The machine without its name."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round((installed() or 0) / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
    }


def versions() -> dict[str, str]:
    """The versions of what is compared, and the commit of the tree."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    commit = _git("rev-parse", "--short", "HEAD")
    if commit:
        changed = " with changes" if _git("status", "--porcelain", "--", "../src") else ""
        found["eyeline"] += f" ({commit}{changed})"
    return found


def product_rate(dtype: torch.dtype, size: int = 2048) -> float:
    """Floating-point operations per second of this machine's own matrix product."""
    left, right = (torch.randn(size, size).to(dtype) for _ in range(2))
    work = timed(lambda: left @ right)
    work()
    return 2.0 * size**3 / repeated_median(work, 7)


def read_rate(megabytes: int = 512) -> float:
    """Bytes per second at which memory is read: the best of several ways to read one block."""
    block = torch.ones(megabytes << 18)
    matrix = block.view(-1, 4096)
    vector = torch.ones(4096)
    ways: list[Callable[[], object]] = [
        block.sum,
        block.max,
        lambda: torch.mv(matrix, vector),
        lambda: torch.dot(block, block),
    ]
    best = 0.0
    for way in ways:
        work = timed(way)
        work()
        best = max(best, block.numel() * 4 / repeated_median(work, 7))
    return best


class Watch:
    """The share of the machine's processors that others used since the watch was made.

    Fresh processes count as our own once they have ended. 0 where the system does not say.
    """

    def __init__(self) -> None:
        self._all, self._own = _busy_seconds(), _own_seconds()
        self._start = os.times().elapsed

    def others(self) -> float:
        elapsed = (os.times().elapsed - self._start) * (os.cpu_count() or 1)
        busy, own = _busy_seconds() - self._all, _own_seconds() - self._own
        return max(busy - own, 0.0) / max(elapsed, 1e-9)


def _own_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _busy_seconds() -> float:
    try:
        first = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return 0.0
    user, nice, system, _, _, irq, softirq, steal = map(int, first[:8])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
