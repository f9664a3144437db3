"""`eyeline embed`: vectors on stdout, what is about them on stderr, mistakes in a line."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cli.conftest import Command
from eyeline.embedding import embed
from eyeline.loading import load, save
from eyeline.models import BertMasked
from eyeline.patterns import Full, Window
from eyeline.tokenizer import ByteTokenizer
from models.small_encoder import FILES, write_encoder, write_json
from models.tiny_bert import CONFIG, bert

TEXTS = ("the cat sleeps", "a very old dog runs and runs and runs", "shares fell on monday")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoder") / "small")


def vectors(folder: Path, *texts: str, pattern: Any = None, **options: Any) -> torch.Tensor:
    found = load(folder, dtype=torch.float32, packed=False, pattern=pattern)
    assert found.tokenizer is not None
    settings = {"how": "mean", "normalize": True, "max_tokens": 11, **options}
    return embed(found.model, found.tokenizer, texts, **settings)


def read(out: str) -> torch.Tensor:
    return torch.tensor([[float(word) for word in line.split()] for line in out.splitlines()])


def test_one_vector_a_line(eyeline: Command, encoder: Path) -> None:
    found = eyeline("embed", *TEXTS, "--model", encoder)
    assert found.status == 0
    torch.testing.assert_close(read(found.out), vectors(encoder, *TEXTS), rtol=1e-6, atol=1e-7)
    assert "3 vectors · 35 numbers · mean of the tokens · length 1" in found.err


def test_a_table_of_cosines_for_two_or_more(eyeline: Command, encoder: Path) -> None:
    found = eyeline("embed", *TEXTS, "--model", encoder)
    unit = vectors(encoder, *TEXTS)
    for number, (text, row) in enumerate(zip(TEXTS, (unit @ unit.T).tolist(), strict=True), 1):
        values = " +".join(re.escape(f"{value:.2f}") for value in row)
        assert re.search(rf"{number} {text} +{values} *\n", found.err), found.err
    assert "cosine" not in eyeline("embed", "cat", "--model", encoder).err
    many = eyeline("embed", *(["cat", "dog"] * 7), "--model", encoder)
    assert len(many.out.splitlines()) == 14 and "cosine" not in many.err


def test_a_terminal_shows_what_fits_in_a_line(
    eyeline: Command, encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "97")
    whole = vectors(encoder, *TEXTS).tolist()
    for line, numbers in zip(
        eyeline("embed", *TEXTS, "--model", encoder).out.splitlines(), whole, strict=True
    ):
        assert len(line) <= 97 and line.endswith(" … 35 numbers; whole in a pipe or with --json")
        assert float(line.split()[1]) == pytest.approx(numbers[1], rel=1e-5)


def test_json(eyeline: Command, encoder: Path) -> None:
    found = eyeline("embed", *TEXTS, "--model", encoder, "--json")
    answer, want = found.json, vectors(encoder, *TEXTS)
    assert [row["text"] for row in answer["texts"]] == list(TEXTS)
    assert [row["tokens"] for row in answer["texts"]] == [5, 11, 6]
    got = torch.tensor([row["vector"] for row in answer["texts"]])
    torch.testing.assert_close(got, want, rtol=0, atol=1e-6)
    torch.testing.assert_close(torch.tensor(answer["cosines"]), want @ want.T, rtol=0, atol=1e-6)
    assert (answer["pooling"], answer["normalized"], answer["max_tokens"]) == ("mean", True, 11)
    assert answer["patterns"] == ["full"] and answer["dtype"] == "float32"
    assert eyeline("embed", "cat", "--model", encoder, "--json").json["cosines"] is None


def test_what_is_asked_comes_before_what_the_folder_says(eyeline: Command, encoder: Path) -> None:
    found = eyeline(
        "embed", *TEXTS, "--model", encoder, "--pooling", "max", "--no-normalize",
        "--max-tokens", 5,
    )  # fmt: skip
    want = vectors(encoder, *TEXTS, how="max", normalize=False, max_tokens=5)
    torch.testing.assert_close(read(found.out), want, rtol=1e-6, atol=1e-6)
    assert "largest of the tokens" in found.err and "length 1" not in found.err


def test_a_text_that_is_cut_is_told(eyeline: Command, encoder: Path) -> None:
    words = [f"{TEXTS[1]} and {text}" for text in ("cat", "dog", "shares", "monday", "old")]
    found = eyeline("embed", "cat", *words, "--model", encoder)
    assert "text 2 has 13 tokens, and the first 11 were read (--max-tokens)\n" in found.err
    assert "text 4 has 13" in found.err and "text 5 has" not in found.err
    assert "and 2 more texts were cut" in found.err
    answer = eyeline("embed", words[0], "--model", encoder, "--json")
    assert answer.json["texts"][0]["tokens_read"] == 11 and "13 tokens" in answer.err


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("window(1, 1)", Window(1, 1)),
        ("0-1: full; 2: window(0, 0)", [Full(), Full(), Window(0, 0)]),
    ],
)
def test_another_pattern(text: str, pattern: Any, eyeline: Command, encoder: Path) -> None:
    found = eyeline("embed", *TEXTS, "--model", encoder, "--pattern", text)
    want = vectors(encoder, *TEXTS, pattern=pattern)
    torch.testing.assert_close(read(found.out), want, rtol=1e-6, atol=1e-7)
    assert (want - vectors(encoder, *TEXTS)).abs().max() > 1e-3


@pytest.mark.parametrize("way", ["file", "-", "--file -"])
def test_lines_of_a_file_or_of_stdin(
    way: str, eyeline: Command, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "\n".join(TEXTS).replace("very old", "very\u2028old") + "\n"
    (tmp_path / "texts.txt").write_text(text)
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    words = ["--file", tmp_path / "texts.txt"] if way == "file" else way.split()
    found = eyeline("embed", *words, "--model", encoder)
    torch.testing.assert_close(read(found.out), vectors(encoder, *TEXTS), rtol=1e-6, atol=1e-7)


def test_a_trained_folder_works_at_once(eyeline: Command, tmp_path: Path) -> None:
    """A text that is longer than its positions is cut, and that is told."""
    model = bert(BertMasked, replace(CONFIG, vocabulary=260))
    save(model, tmp_path / "m", tokenizer=ByteTokenizer())
    texts = ("naïve", "a text that is longer than 23 bytes")
    found = eyeline("embed", *texts, "--model", tmp_path / "m")
    want = vectors(tmp_path / "m", *texts, normalize=False, max_tokens=23)
    torch.testing.assert_close(read(found.out), want, rtol=1e-6, atol=1e-6)
    assert "text 2 has 35 tokens, and the first 23 were read" in found.err


def test_a_language_model_will_do(eyeline: Command, model: Path) -> None:
    found = eyeline("embed", "ab", "cab", "--model", model)
    assert found.status == 0
    torch.testing.assert_close(
        read(found.out), vectors(model, "ab", "cab", normalize=False), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give one TEXT or several, or --file; nothing was given"),
        (["cat", "--file", "x"], "--file; both were given"),
        (["cat", "-"], "- reads the texts from stdin, and stands alone"),
        (["cat", ""], "text 2 of the command line: the text is empty"),
        (["cat", "  "], "text 2 of the command line: the text is empty"),
        (["cat", "\u200b\x07"], r"texts\[1\] is empty"),
        (["--file", "gap.txt"], "--file gap.txt, line 2: the text is empty"),
        (["--file", "none.txt"], "--file none.txt: no such file"),
        (["--file", "."], "--file .: is a directory"),
        (["--file", "empty.txt"], "--file empty.txt: there is no text in it"),
        (["--file", "latin.txt"], "--file latin.txt, line 1: not UTF-8 text .byte 3"),
        (["cat", "--pooling", "sum"], "'sum' is not one of 'mean', 'cls', 'max'"),
        (["cat", "--max-tokens", "2"], "max_tokens=2: 2 tokens begin and end"),
        (["cat", "--max-tokens", "0"], "--max-tokens"),
        (["cat " * 30, "--max-tokens", "30"], r"texts\[0\] has 30 tokens and the model 23 posit"),
        (["cat", "--pattern", "ful"], "unknown pattern 'ful'"),
        (["cat", "--pattern", "0-3: full"], "there is no layer 3, they are 0 to 2"),
        (["cat", "--dtype", "int8"], "'int8' is not one of"),
    ],
)
def test_mistakes_are_told_in_one_line(
    words: list[str],
    message: str,
    eyeline: Command,
    encoder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gap.txt").write_text("cat\n\ndog\n")
    Path("empty.txt").write_text("")
    Path("latin.txt").write_bytes("caf\xe9".encode("latin-1"))
    found = eyeline("embed", *words, "--model", encoder)
    assert (found.status, found.out) == (2, "")
    assert found.err.startswith("eyeline: ") and found.err.count("\n") == 1
    assert re.search(message, found.err), found.err


def test_folders_that_cannot_serve(eyeline: Command, encoder: Path, tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "m")
    write_json(folder, "1_Pooling/config.json", {"pooling_mode_lasttoken": True})
    found = eyeline("embed", "cat", "--model", folder)
    assert found.status == 2 and "pooling_mode_lasttoken=True is not built yet" in found.err
    for name in FILES:
        (folder / name).unlink()
    (folder / "tokenizer.json").unlink()
    found = eyeline("embed", "cat", "--model", folder)
    assert found.status == 2 and "no tokenizer in it, and text needs one" in found.err
    found = eyeline("embed", "cat", "--model", "MiniLM-none")
    assert found.status == 2 and "nearest known name is all-MiniLM-L6-v2" in found.err


def test_an_encoder_does_not_write(eyeline: Command, encoder: Path) -> None:
    found = eyeline("generate", encoder, "Hi")
    assert found.status == 2 and found.err.count("\n") == 1 and "Bert" in found.err
    assert "Traceback" not in found.err
