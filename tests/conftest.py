"""What tests of several floors share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

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
    from eyeline.checkpoints.fetch import cached_file
    from eyeline.checkpoints.known import DEFAULT_MODEL, find

    known = find(DEFAULT_MODEL)
    assert known is not None
    path = cached_file(known.package)
    if path is not None:
        return path
    reason = f"{known.name} was not fetched: run `eyeline models --fetch {known.name}`"
    if os.environ.get("EYELINE_MODEL_REQUIRED"):
        pytest.fail(reason)
    pytest.skip(reason)
