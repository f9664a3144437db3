"""Models that have a name: where they are, and fetching them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.conftest import Command
from eyeline.checkpoints.known import MODELS

NAME = MODELS[0].name


@pytest.fixture(autouse=True)
def empty_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EYELINE_CACHE", str(tmp_path))
    monkeypatch.setattr("eyeline.checkpoints.resolve.local_snapshot", lambda _: None)


def test_a_model_that_is_not_there(eyeline: Command) -> None:
    found = eyeline("models")
    assert found.status == 0 and f"{NAME}, the default" in found.out
    assert f"not fetched; eyeline models --fetch {NAME} brings 98.4 MB" in found.out


def test_a_model_that_is_there(
    eyeline: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.gguf"
    monkeypatch.setattr("eyeline.checkpoints.fetch.cached", lambda _: path)
    assert str(path) in eyeline("models").out.replace("\n", "")


def test_json(eyeline: Command) -> None:
    first, second = eyeline("models", "--json").json["models"]
    assert first == {
        "name": NAME, "repository": MODELS[0].repository, "about": MODELS[0].about,
        "license": "Apache-2.0", "default": "generate and compare", "present": False,
        "path": None, "bytes": 98_362_432,
    }  # fmt: skip
    assert (second["name"], second["default"]) == ("all-MiniLM-L6-v2", "embed")


def test_fetching_tells_how_far_it_is_and_where_it_is(
    eyeline: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(name: str, *, progress: object) -> Path:
        assert callable(progress)
        for done in (0, 3, 7):
            progress("downloading", done, 7)
        progress("checking", 0, 0)
        return Path("/models") / name

    monkeypatch.setattr("eyeline.checkpoints.resolve.resolve", resolve)
    assert eyeline("models", "--fetch", NAME) == (0, f"{NAME}: /models/{NAME}\n", "")
    found = eyeline("models", "--fetch", NAME, "--json").json
    assert found == {"name": NAME, "path": f"/models/{NAME}"}
