"""`eyeline plan`: numbers as counted by hand, pictures in every form, mistakes in one line."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Command
from eyeline.kernels import KERNELS

ROOT = Path(__file__).parents[2]
SMALL = ("--length", 67, "--heads", 3, "--dim", 5)
READY = {
    "sliding_window(5)": "sliding_window(256)",
    "streaming(5, 2)": "streaming(512, 4)",
    "prefix_lm(11)": "prefix_lm(1000)",
    "longformer(3, [0, 40])": "longformer(128, 16)",
    "bigbird(4, 2, 1)": "bigbird(64, 3, 1)",
    "sparse_transformer(8)": "sparse_transformer(128)",
    "sparse_transformer(8, kind=fixed)": "sparse_transformer(128, kind=fixed)",
}


def test_json_has_everything_as_numbers(eyeline: Command) -> None:
    found = eyeline("plan", "sliding_window(5)", *SMALL, "--json")
    assert found.status == 0 and found.err == ""
    answer = found.json
    pairs = 5 * 67 - 10
    answer.pop("environment")
    plan, picture, kernels = (answer.pop(name) for name in ("plan", "picture", "kernels"))
    cost = answer.pop("cost")
    assert answer == {
        "pattern": "causal & window(left=4, right=0)", "length": 67, "key_length": 67, "heads": 3,
        "dim": 5, "dtype": "float32", "backward": False, "head": None, "pairs": pairs,
        "share": pairs / 67**2, "path_length": 17, "path_length_refusal": None,
        "cache": {"keys": 5, "bytes": 5 * 3 * 2 * 5 * 4, "refusal": None}, "kernel": "sdpa",
    }  # fmt: skip
    assert cost["pairs"] == 3 * pairs and cost["share"] == pytest.approx(answer["share"])
    assert cost["flops"] == 3 * pairs * 2 * 10 and cost["dense_flops"] == 3 * 67**2 * 2 * 10
    assert plan["computed"] == sum(each["computed"] for each in plan["parts"].values()) >= pairs
    assert set(kernels) == {kernel.NAME for kernel in KERNELS} and kernels["sdpa"] == "chosen"
    assert "at most 8 queries" in kernels["decode"]
    assert picture["cell"] == 2 and picture["exact"] and len(picture["shares"]) == 34


def test_the_backward_pass_and_the_type_are_counted(eyeline: Command) -> None:
    words = ("plan", "causal", *SMALL, "--json")
    forward, backward = (eyeline(*words, *more).json for more in ((), ("--backward",)))
    assert backward["cost"]["flops"] == 3.5 * forward["cost"]["flops"]
    half = eyeline(*words, "--dtype", "float16").json
    assert half["cache"]["bytes"] * 2 == forward["cache"]["bytes"] == 67 * 3 * 2 * 5 * 4


def test_the_picture_and_the_table(eyeline: Command) -> None:
    found = eyeline("plan", "causal", "--length", 5)
    assert found.status == 0 and found.err == ""
    assert "  ▏█▄   ▕\n  ▏███▄ ▕\n  ▏▀▀▀▀▀▕\n" in found.out
    assert found.out.startswith("causal\n5 queries (down) × 5 keys (across)\n")
    for words in ("pairs +15 +a head; 60 % of all", "longest path +1 +layer", "cache +5 keys"):
        assert re.search(words, found.out), found.out
    assert max(map(len, found.out.splitlines())) <= 100


def test_a_narrow_terminal(eyeline: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    monkeypatch.setattr("eyeline.cli.plan.console", lambda: Console(width=72))
    found = eyeline("plan", "streaming(256, 4)", "--length", 4099)
    assert found.status == 0 and max(map(len, found.out.splitlines())) <= 72


def test_more_keys_than_queries(eyeline: Command) -> None:
    found = eyeline("plan", "sliding_window(5)", "--length", 2, "--key-length", 67, "--json").json
    assert (found["pairs"], found["kernel"], found["cache"]["keys"]) == (10, "decode", 5)
    assert found["path_length"] is None and "as many queries" in found["path_length_refusal"]
    assert len(found["picture"]["shares"]) == 1


def test_nothing_is_written_where_tokens_look_ahead(eyeline: Command) -> None:
    kept = eyeline("plan", "window(3, 1)", *SMALL, "--json").json["cache"]
    assert kept["keys"] is None and "later ones" in kept["refusal"]
    assert "later ones" in eyeline("plan", "window(3, 1)", *SMALL).out


def test_heads_that_differ(eyeline: Command) -> None:
    text = "per_head([causal, sliding_window(4), full])"
    first, third = (
        eyeline("plan", text, *SMALL, *more, "--json").json for more in ((), ("--head", 2))
    )
    assert (first["head"], third["head"]) == (0, 2)
    assert (first["pairs"], third["pairs"]) == (67 * 34, 67**2)
    assert first["cost"]["pairs"] == third["cost"]["pairs"] == 67 * 34 + 4 * 67 - 6 + 67**2
    assert "head 0 of 3" in eyeline("plan", text, *SMALL).out


@pytest.mark.parametrize("text", READY)
def test_ready_made_patterns_at_64(text: str, eyeline: Command) -> None:
    found = eyeline("plan", text, "--length", 64)
    assert found.status == 0, found.err
    assert len(found.out.split("▏")) == 33 and "█" in found.out


@pytest.mark.parametrize("text", READY.values())
def test_ready_made_patterns_at_a_million(text: str, eyeline: Command) -> None:
    answer = eyeline("plan", text, "--length", 1_000_000, "--json").json
    assert answer["kernel"] == "tiles"
    drawn = answer["picture"]
    counted = sum(sum(row) for row in drawn["shares"]) * drawn["cell"] ** 2
    assert counted == pytest.approx(answer["pairs"], rel=0.15)
    assert (answer["path_length"] is None) == (answer["path_length_refusal"] is not None)


@pytest.mark.parametrize("kind", ["png", "svg"])
@pytest.mark.parametrize(
    "text", ["streaming(5, 2)", "causal & strided(7) | sinks(1) | ~window(60, 60)"]
)
def test_the_image(kind: str, text: str, eyeline: Command, tmp_path: Path) -> None:
    path = tmp_path / f"picture.{kind}"
    for sizes in (("--length", 64), ("--length", 3001), ("--length", 2, "--key-length", 500)):
        assert eyeline("plan", text, *sizes, "--image", path).status == 0
        start = path.read_bytes()[:200]
        assert start.startswith(b"\x89PNG\r\n") if kind == "png" else b"<?xml" in start


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["causal &"], "a pattern is missing, at character 9: causal &▶"),
        (["casual"], "unknown pattern 'casual'; the nearest known one is 'causal'"),
        (["0-3: causal"], "'0-3: causal': plan has no layers; give one pattern"),
        (["causal", "--length", "0"], "--length"),
        (["causal", "--key-length", "0"], "--key-length"),
        (["causal", "--heads", "0"], "--heads"),
        (["causal", "--head", "1"], "--head 1: heads are counted from 0, and --heads is 1"),
        (["causal", "--length", "7", "--key-length", "5"], "7 queries but 5 keys"),
        (["causal", "--dtype", "int8"], "'int8' is not one of"),
        (["causal", "--image", "picture.gif"], "--image picture.gif: a name that ends in"),
        (["causal", "--image", "no/such/place.png"], "--image .*there is no folder .*no/such"),
        (["global([99])", "--length", "7"], "position 99"),
        (["grid(3, 5, 1)", "--length", "16"], "15.*16|16.*15"),
        (["bigbird(4, 9, 1)", "--length", "16"], "9.*4|4.*9"),
        (["per_head([causal, full])"], "2.*1|1.*2"),
        ([], "Missing argument 'PATTERN'"),
    ],
)  # fmt: skip
def test_mistakes_are_told_in_one_line(words: list[str], message: str, eyeline: Command) -> None:
    found = eyeline("plan", *words)
    assert (found.status, found.out) == (2, "")
    assert found.err.startswith("eyeline: ") and found.err.count("\n") == 1
    assert re.search(message, found.err), found.err


def test_the_gallery_is_drawn_by_its_script(tmp_path: Path) -> None:
    script: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "images" / "patterns.py"))
    drawn = script["pictures"]()
    assert {"longformer", "bigbird", "sparse_transformer", "streaming", "sliding_window"} < {
        re.match(r"\w+", text)[0]  # type: ignore[index]
        for text, _ in drawn.values()
    }
    assert all(picture.cell == 1 and picture.queries == 64 for _, picture in drawn.values())
    script["draw_gallery"](drawn, tmp_path / "gallery.png")
    assert (tmp_path / "gallery.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_the_page_shows_what_its_snippet_prints(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "gallery.md").read_text("utf-8")
    snippet, shown = re.search(
        r"```python\n(.*?)```\n\n```text\n(.*?)```", page, re.DOTALL
    ).groups()  # type: ignore[union-attr]
    exec(compile(snippet, "gallery.md", "exec"), {})
    assert capsys.readouterr().out == shown
