"""The table, the JSON and the figure of sweeps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli.conftest import Command
from eyeline.cli.bench import crossing
from eyeline.kernels import KERNELS
from eyeline.measuring import Case, Shape, Sweep

SMALL = ("--heads", 2, "--dim", 5, "--length", 67, "--length", 521, "--rounds", 1)
PATTERN = ("--pattern", "sliding_window(7)")


def test_json(eyeline: Command) -> None:
    words = (*SMALL, *PATTERN, "--kv-heads", 1, "--dtype", "float64", "--backward", "--no-memory")
    found = eyeline("bench", *words, "--json")
    assert found.status == 0 and found.err == ""
    answer = found.json
    assert answer["baseline"] == "torch SDPA, causal"
    assert answer["shape"] == {
        "heads": 2, "dim": 5, "kv_heads": 1, "dtype": "float64", "backward": True
    }  # fmt: skip
    assert [each["length"] for each in answer["baseline_seconds"]] == [67, 521]
    (case,) = answer["cases"]
    assert set(case) == {"label", "backend", "points", "peak_bytes", "crossover"}
    assert set(case["points"][0]) == {
        "length", "pairs", "kernel", "seconds", "speedup", "refusal", "attention_share"
    }  # fmt: skip


def test_the_table_and_its_refusals(eyeline: Command) -> None:
    backends = ("--backend", "sdpa", "--backend", "tiles", "--no-memory")
    found = eyeline("bench", *SMALL, *PATTERN, *backends)
    assert found.status == 0 and found.err == ""
    assert "torch SDPA, causal" in found.out and "refused" in found.out
    assert "dense mask" in found.out and "sliding_window(7) by sdpa" in found.out


def test_every_kind_of_pattern_and_every_kernel(eyeline: Command) -> None:
    """Patterns that differ per head and length; and the help names all kernels."""
    texts = ("bigbird(4, 2, 1)", "per_head([causal, full])", "sparse_transformer(8)")
    patterns = [word for text in texts for word in ("--pattern", text)]
    found = eyeline("bench", *SMALL, *patterns, "--backend", "tiles", "--no-memory", "--json")
    assert found.status == 0, found.err
    assert [case["label"] for case in found.json["cases"]] == list(texts)
    shown = " ".join(eyeline("bench", "--help").out.split())
    named = re.search(r"auto, ([a-z, ]+)\.", shown)
    assert named is not None
    assert sorted(named[1].split(", ")) == sorted(kernel.NAME for kernel in KERNELS)


def test_the_figure_with_memory(eyeline: Command, tmp_path: Path) -> None:
    path = tmp_path / "figure.png"
    found = eyeline("bench", *SMALL, *PATTERN, "--plot", path, "--json")
    assert found.status == 0 and path.read_bytes().startswith(b"\x89PNG\r\n")
    answer = found.json
    peaks = (answer["baseline_peak_bytes"], answer["cases"][0]["peak_bytes"])
    assert all(peak is None or peak >= 0 for peak in peaks)


@pytest.mark.parametrize(
    ("crossover", "words"),
    [(None, "none up to 2,048"), (512.0, "512 or less"), (700.4, "700")],
)
def test_the_crossover_in_words(crossover: float | None, words: str) -> None:
    case = Case("w", "auto", (), None, crossover)
    assert crossing(case, Sweep(Shape(), (512, 2048), 5, {}, None, 1, (case,))) == words


def test_the_counted_table(eyeline: Command) -> None:
    found = eyeline("bench", "--mechanism", "all", "--count-only", "--length", 300)
    assert found.status == 0 and found.err == ""
    for word in ("recurrent", "longformer", "linformer", "multiplications", "token reaches token"):
        assert word in found.out
    words = ("--mechanism", "linear", "--pattern", "causal", "--length", 67, "--heads", 2)
    answer = eyeline("bench", *words, "--count-only", "--json").json
    (row,) = answer["counts"]["rows"]
    assert (row["label"], row["steps"], row["path"]) == ("linear under causal", 2, 1)
    assert row["multiplications"] == 2 * 2 * 64 * 64 * 67


def test_mechanisms_are_timed_beside_patterns(eyeline: Command, tmp_path: Path) -> None:
    path = tmp_path / "figure.png"
    each = [word for x in ("exact", "recurrent", "linear") for word in ("--mechanism", x)]
    found = eyeline("bench", *SMALL, *each, "--no-memory", "--json", "--plot", path)
    assert found.status == 0 and path.read_bytes().startswith(b"\x89PNG\r\n")
    answer = found.json
    assert [case["label"] for case in answer["cases"]] == ["full", "recurrent", "linear"]
    assert [row["label"] for row in answer["counts"]["rows"]] == ["full", "recurrent", "linear"]
    assert set(answer["around_seconds"][0]) == {"length", "projections", "rest"}
    shown = eyeline("bench", *SMALL, *each, "--no-memory").out
    assert "Share of a block's time" in shown and "steps" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--mechanism", "foo"), "there is no mechanism 'foo'"),
        (("--mechanism", "all", "--pattern", "causal"), "has its own patterns"),
        (("--mechanism", "recurrent", "--pattern", "causal"), "cannot honour causal"),
        (("--mechanism", "linear", "--backend", "tiles"), "--backend is for patterns"),
        (("--mechanism", "linear", "--kv-heads", 1), "that of equal heads"),
        (("--mechanism", "linear", "--count-only", "--backward"), "--backward with --count-only"),
    ],
)
def test_mistakes_with_mechanisms(eyeline: Command, words: tuple[str, ...], message: str) -> None:
    found = eyeline("bench", *words)
    assert found.status == 2 and message in found.err and found.err.count("\n") == 1
