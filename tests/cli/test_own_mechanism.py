"""The example of a mechanism of one's own: checked, trained, written from, and timed."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cli.conftest import Command
from eyeline import Full, registry
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.mechanisms.base import MECHANISMS
from eyeline.testing.mechanism import Claims, check_mechanism

EXAMPLES = Path(__file__).parents[2] / "examples"
WORD = "block_topk(block=8, k=2)"


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In the folder of the example, whose word is forgotten again."""
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(registry, "_imported", [])
    yield
    MECHANISMS.pop("block_topk", None)
    sys.modules.pop("block_topk", None)


@pytest.fixture
def example(here: None) -> Any:
    sys.path.append(str(EXAMPLES))
    return importlib.import_module("block_topk")


def test_the_file_checks_itself() -> None:
    command = [sys.executable, str(EXAMPLES / "block_topk.py")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "what its dense definition says" in done.stdout


def test_it_is_trained_written_from_and_timed(
    eyeline: Command, here: None, text: Path, tmp_path: Path
) -> None:
    sizes = ("--layers", 1, "--width", 16, "--heads", 2, "--length", 32, "--batch-tokens", 64)
    to, known = tmp_path / "book", ("--import", "block_topk")
    trained = eyeline(
        "train", "lm", text, "--out", to, "--steps", 2, *sizes, "--mechanism", WORD, *known
    )
    assert trained.status == 0, trained.err
    written = eyeline("generate", to, "The quick", "--max-new-tokens", 5, *known, "--json")
    assert written.status == 0, written.err
    assert "block_topk" in (to / "eyeline.json").read_text("utf-8")
    timed = eyeline(
        "bench", "--mechanism", WORD, "--pattern", "causal", "--length", 64, "--heads", 2,
        "--dim", 8, "--rounds", 1, "--no-memory", *known, "--json",
    )  # fmt: skip
    assert timed.status == 0, timed.err
    assert WORD in timed.out


@pytest.mark.parametrize("fault", ["own block forgotten", "one block too few", "looks ahead"])
def test_the_suite_sees_a_wrong_choice(
    example: Any, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    right = example.route_of_blocks

    def wrong(choice: torch.Tensor, blocks: Any) -> Any:
        if fault == "looks ahead":
            return right((choice + 1).clamp(max=blocks.count - 1), blocks)
        first = 1 if fault == "own block forgotten" else 0
        return right(choice[..., first : choice.shape[3] - 1 + first], blocks)

    monkeypatch.setattr(example, "route_of_blocks", wrong)
    with pytest.raises(AssertionError):
        check_mechanism(
            lambda: example.BlockTopK(block=4, k=2), Claims(lengths=(29,)), reference=example.dense
        )


def test_what_it_does_not_take(example: Any) -> None:
    with pytest.raises(InvalidArgument, match="block=0"):
        example.BlockTopK(block=0)
    with pytest.raises(NotSupported, match="causal, not full"):
        example.BlockTopK(pattern=Full())
