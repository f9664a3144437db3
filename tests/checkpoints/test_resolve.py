"""From a name to a place: path, hub cache, package, hub, in this order."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from eyeline.checkpoints.fetch import Unavailable
from eyeline.checkpoints.known import DEFAULT_ENCODER, DEFAULT_MODEL, find, nearest
from eyeline.checkpoints.resolve import is_repository, local_snapshot, resolve
from eyeline.errors import CheckpointError, FetchError

RESOLVE = sys.modules["eyeline.checkpoints.resolve"]
REPOSITORY = "HuggingFaceTB/SmolLM2-135M-Instruct"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked, in order, by a machine where nothing is to be had."""
    order: list[str] = []

    def cached(repository: str) -> None:
        order.append(f"cache {repository}")

    def package(_: object, **__: object) -> Path:
        order.append("package")
        raise Unavailable("pip: are you on line?")

    def hub(repository: str) -> Path:
        order.append(f"hub {repository}")
        raise FetchError("hub: not reached")

    monkeypatch.setattr(RESOLVE, "local_snapshot", cached)
    monkeypatch.setattr(RESOLVE, "fetch", package)
    monkeypatch.setattr(RESOLVE, "download_snapshot", hub)
    return order


def test_a_path_comes_first(
    tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(DEFAULT_MODEL).mkdir()
    assert resolve(DEFAULT_MODEL) == Path(DEFAULT_MODEL)
    assert resolve(tmp_path) == tmp_path
    assert asked == []


@pytest.mark.parametrize("name", [DEFAULT_MODEL, DEFAULT_MODEL.lower(), REPOSITORY])
def test_a_known_name_is_looked_for_everywhere(name: str, asked: list[str]) -> None:
    with pytest.raises(FetchError, match="are you on line"):
        resolve(name)
    assert asked == [f"cache {REPOSITORY}", "package", f"hub {REPOSITORY}"]


def test_the_hub_cache_comes_before_the_package(
    tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RESOLVE, "local_snapshot", lambda _: tmp_path)
    assert resolve(DEFAULT_MODEL) == tmp_path
    assert asked == []


def test_a_wrong_hash_is_no_reason_to_look_elsewhere(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forged(*_: object, **__: object) -> Path:
        raise FetchError("its SHA-256 is another")

    monkeypatch.setattr(RESOLVE, "fetch", forged)
    with pytest.raises(FetchError, match="SHA-256"):
        resolve(DEFAULT_MODEL)
    assert asked == [f"cache {REPOSITORY}"]


def test_another_repository_is_asked_of_the_hub(asked: list[str]) -> None:
    with pytest.raises(FetchError, match="not reached"):
        resolve("someone/some-model")
    assert asked == ["cache someone/some-model", "hub someone/some-model"]


@pytest.mark.parametrize("name", ["smollm2-135m", "./none", "/none", "a/b/c", "sub/none.gguf", ""])
def test_other_names_mean_nothing(name: str, asked: list[str]) -> None:
    with pytest.raises(CheckpointError, match=r"nearest known name is (SmolLM2|all-Mini)"):
        resolve(name)
    assert asked == []


def test_names() -> None:
    known = find("smollm2-135m-INSTRUCT")
    assert known is not None
    assert known is find(REPOSITORY)
    assert find("other") is None
    assert nearest("smolm") == DEFAULT_MODEL
    assert nearest("MiniLM") == DEFAULT_ENCODER
    assert is_repository("a/b.c-d")
    assert not any(is_repository(name) for name in ("a", "a/b/c", "../b", "a/b c", "a/", "/b"))


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the hub's own library takes for a repository in its cache."""
    import huggingface_hub

    folder = tmp_path / "snapshot"
    folder.mkdir()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(folder))
    return folder


def test_only_a_whole_snapshot_counts(snapshot: Path) -> None:
    assert local_snapshot("a/b") is None
    (snapshot / "config.json").write_text("{}")
    assert local_snapshot("a/b") is None
    (snapshot / "model.safetensors").write_bytes(b"")
    assert local_snapshot("a/b") == snapshot


def test_a_snapshot_without_a_shard_does_not_count(snapshot: Path) -> None:
    (snapshot / "config.json").write_text("{}")
    index = '{"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}'
    (snapshot / "model.safetensors.index.json").write_text(index)
    (snapshot / "model-1-of-2.safetensors").write_bytes(b"")
    assert local_snapshot("a/b") is None
    (snapshot / "model-2-of-2.safetensors").write_bytes(b"")
    assert local_snapshot("a/b") == snapshot


def test_a_hub_that_fails_gives_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    from eyeline.checkpoints.resolve import download_snapshot

    def fail(*_: object, **__: object) -> str:
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(FetchError, match=r"a/b: .*ConnectionError: 'no route to host'"):
        download_snapshot("a/b")
