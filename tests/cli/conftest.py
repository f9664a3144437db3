"""The command in this process, and the model it is asked to use."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cli.small_model import write_model
from eyeline.cli import run


class Outcome(NamedTuple):
    """What a command line led to."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Outcome]


@pytest.fixture
def eyeline(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command line, given as its words."""

    def call(*words: object) -> Outcome:
        capsys.readouterr()
        status = run([str(word) for word in words])
        return Outcome(status, *capsys.readouterr())

    return call


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "small")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A text of 1,499 letters, more than the tests read."""
    path = tmp_path / "text.txt"
    path.write_text(("The quick brown fox jumps over the lazy dog, 31 times.\n" * 40)[:1499])
    return path
