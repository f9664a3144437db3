"""What tests of several floors share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

from limits import pytest_runtest_protocol as pytest_runtest_protocol

# No timing in tests; and the same examples wherever a change is judged.
settings.register_profile("eyeline", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("eyeline")


@pytest.fixture
def small_gguf(tmp_path: Path) -> Path:
    """A tiny GGUF file, made anew."""
    from checkpoints.sample_files import write_gguf

    return write_gguf(tmp_path / "small.gguf")


@pytest.fixture(scope="session")
def model_file() -> Path:
    """The real model's GGUF file, as fetched before; tests themselves fetch nothing."""
    from eyeline.checkpoints.known import DEFAULT_MODEL

    return _fetched(DEFAULT_MODEL)


@pytest.fixture(scope="session")
def encoder_folder() -> Path:
    """The real sentence encoder's folder, as fetched before."""
    from eyeline.checkpoints.known import DEFAULT_ENCODER

    return _fetched(DEFAULT_ENCODER)


def _fetched(name: str) -> Path:
    from eyeline.checkpoints.fetch import cached
    from eyeline.checkpoints.known import find

    known = find(name)
    assert known is not None
    path = cached(known.package)
    if path is not None:
        return path
    reason = f"{known.name} was not fetched: run `eyeline models --fetch {known.name}`"
    if os.environ.get("EYELINE_MODEL_REQUIRED"):
        pytest.fail(reason)
    pytest.skip(reason)
