"""Tables, JSON and figures of comparisons, and the texts they are made of."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
import torch

from cli.conftest import Command
from eyeline.cli.compare import Text, _ids, _text
from eyeline.loading import load
from eyeline.patterns import sliding_window

FIXED = ("--length", 997, "--rounds", 1, "--dtype", "float32")
PATTERNS = ("--pattern", "sliding_window(31)", "--pattern", "0: causal; 1-2: streaming(97, 4)")


def test_json_has_a_row_for_each_pattern(eyeline: Command, model: Path, text: Path) -> None:
    found = eyeline("compare", model, "--text", text, *FIXED, *PATTERNS, "--json")
    assert found.status == 0 and found.err == ""
    answer = found.json
    assert set(answer) == {
        "model", "source", "dtype", "text", "length", "rounds", "rows", "environment",
    }  # fmt: skip
    assert (answer["length"], answer["text"], answer["dtype"]) == (997, "text.txt", "float32")
    labels = ["causal", "sliding_window(31)", "0: causal; 1-2: streaming(97, 4)"]
    assert [row["label"] for row in answer["rows"]] == labels
    for row in answer["rows"]:
        assert set(row) == {
            "label", "patterns", "pairs", "share", "read_seconds", "attention_share", "peak_bytes",
            "tokens_per_second", "cache_bytes", "perplexity", "change", "recall",
        }  # fmt: skip
        assert [score["distance"] for score in row["recall"]] == [50, 100, 200, 400]
        assert all(0 <= score["found"] <= score["asked"] == 3 for score in row["recall"])
    causal, window, mixed = answer["rows"]
    assert causal["change"] is None
    assert set(window["change"]) == {"relative", "low", "high", "confidence", "blocks"}
    assert window["pairs"] == 31 * 30 / 2 + 31 * 967
    assert mixed["patterns"] == ["causal", "causal & (window(left=96, right=0) | sinks(4))"]


def test_the_perplexity_is_that_of_the_text(eyeline: Command, model: Path, text: Path) -> None:
    words = ("compare", model, "--text", text, "--pattern", "sliding_window(31)", *FIXED, "--json")
    rows = eyeline(*words).json["rows"]
    for row, pattern in zip(rows, (None, sliding_window(31)), strict=True):
        found = load(model, pattern=pattern, dtype=torch.float32)
        assert found.tokenizer is not None
        ids = torch.tensor([found.tokenizer.encode(text.read_text())[:997]])
        with torch.no_grad():
            want = float(found.model.losses(ids).double().mean().exp())
        assert row["perplexity"] == pytest.approx(want, rel=1e-5)


def test_the_tables(eyeline: Command, model: Path, text: Path) -> None:
    found = eyeline("compare", model, "--text", text, *FIXED, *PATTERNS)
    assert found.status == 0 and found.err == ""
    lines = found.out.splitlines()
    for title in ("What it costs", "What it loses"):
        assert sum(line.strip() == title for line in lines) == 1
    assert sum(line.split()[:1] == ["causal"] for line in lines) == 2
    assert any("50" in line and "400" in line and "perplexity" in line for line in lines)
    assert "reads 997 tokens of text.txt" in found.out and "100 %" in found.out
    assert max(map(len, lines)) <= 100


def test_on_a_narrow_terminal_no_number_is_cut(
    eyeline: Command, model: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rich.console import Console

    monkeypatch.setattr("eyeline.cli.compare.console", lambda: Console(width=80))
    found = eyeline("compare", model, "--text", text, *FIXED, *PATTERNS)
    assert "Facts still found" in found.out and "…" not in found.out.split("pairs: of")[0]
    assert max(map(len, found.out.splitlines())) <= 80


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_the_figure(kind: str, eyeline: Command, model: Path, text: Path, tmp_path: Path) -> None:
    path = tmp_path / f"figure.{kind}"
    found = eyeline("compare", model, "--text", text, *FIXED, *PATTERNS, "--plot", path)
    assert found.status == 0
    start = path.read_bytes()[:200]
    assert start.startswith(b"\x89PNG\r\n") if kind == "png" else b"<?xml" in start


def test_a_short_text_has_no_recall(
    eyeline: Command, model: Path, text: Path, tmp_path: Path
) -> None:
    words = ("--length", 131, "--rounds", 1, "--pattern", "sliding_window(7)")
    plot = ("--plot", tmp_path / "figure.png")
    found = eyeline("compare", model, "--text", text, *words, *plot)
    assert found.status == 0 and "planted" not in found.out
    assert (
        eyeline("compare", model, "--text", text, *words, "--json").json["rows"][0]["recall"] == []
    )


def test_a_text_shorter_than_asked(eyeline: Command, model: Path, text: Path) -> None:
    found = eyeline("compare", model, "--text", text, "--length", 2048)
    assert found.status == 2
    assert "text.txt has 1,499 tokens, and --length asks for 2,048" in found.err
    assert "--length 1499" in found.err
    found = eyeline("compare", model, "--text", text, "--length", 100)
    assert found.status == 2 and "at least 128" in found.err


def test_bytes_that_are_no_text(eyeline: Command, tmp_path: Path) -> None:
    path = tmp_path / "picture.bin"
    path.write_bytes(b"abc\xff\xfe")
    found = eyeline("compare", "--text", path)
    assert found.status == 2 and "picture.bin, line 1: not UTF-8 text (byte 3)" in found.err


def test_the_default_text_is_pythons_own_and_long_enough() -> None:
    found = _text(None)
    assert found.name.endswith(platform.python_version().rpartition(".")[0])
    assert len(found.text) > 300_000 and found == _text(None)


def test_control_tokens_in_a_text_are_text(model: Path) -> None:
    tokenizer = load(model).tokenizer
    assert tokenizer is not None
    assert len(_ids(tokenizer, Text("it", "ab<|end|>cd"), 11)) == 11


def test_a_model_that_wants_a_beginning_gets_it(model: Path) -> None:
    tokenizer = load(model).tokenizer
    assert tokenizer is not None

    class Begun:
        bos_id = 96

        def encode(self, text: str, *, special: bool = True) -> list[int]:
            return [96] * special + tokenizer.encode(text, special=False)

    assert _ids(Begun(), Text("it", "abc"), 3) == [96, 66, 67]  # type: ignore[arg-type]
    assert _ids(tokenizer, Text("it", "abc"), 3) == [66, 67, 68]


@pytest.mark.model
def test_the_real_model_loses_what_its_window_does_not_reach(
    eyeline: Command, model_file: Path
) -> None:
    words = ("--length", 800, "--rounds", 1, "--pattern", "streaming(128, 4)", "--json")
    causal, streaming = eyeline("compare", model_file, *words).json["rows"]
    shares = [
        [score["found"] / score["asked"] for score in row["recall"]] for row in (causal, streaming)
    ]
    assert min(shares[0]) >= 0.75
    assert shares[1][0] >= 0.75 and shares[1][-1] <= 0.25
    assert streaming["change"]["low"] > 0
