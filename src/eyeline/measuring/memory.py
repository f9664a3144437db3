"""The peak of this process's memory, where the system can tell."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import final

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@final
class Peak:
    """``with Peak() as peak: …``: the most memory the body held beyond what was held before.

    ``bytes`` is that number, resident memory as the kernel counts it, or None where the kernel
    cannot start the count anew (it can on Linux). Freed memory is given back first, so that the
    body does not live on what earlier work left behind.
    """

    def __init__(self) -> None:
        self.bytes: int | None = None
        self._before: int | None = None

    def __enter__(self) -> Peak:
        give_back()
        self._before = resident() if _reset() else None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        highest = peak_resident()
        if kind is None and self._before is not None and highest is not None:
            self.bytes = max(highest - self._before, 0)


def resident() -> int | None:
    """Bytes of memory that this process holds now, or None where the system does not tell."""
    return _status("VmRSS")


def peak_resident() -> int | None:
    """The most bytes it held since it began (or since the count was set back).

    Not ru_maxrss on Linux: a process that is started inherits the peak of the one that started
    it there.
    """
    if sys.platform == "darwin":
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return _status("VmHWM")


def installed() -> int | None:
    """Bytes of memory that the machine has, or None where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def give_back() -> None:
    """Returns freed memory to the system, as far as the C library can."""
    gc.collect()
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def _reset() -> bool:
    """Sets the kernel's count of the peak back to what is held now."""
    try:
        _CLEAR.write_text("5")
    except OSError:
        return False
    return True


def _status(field: str) -> int | None:
    try:
        lines = _STATUS.read_text("ascii", errors="replace").splitlines()
    except OSError:
        return None
    values = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return int(values[0]) * 1024 if values else None
