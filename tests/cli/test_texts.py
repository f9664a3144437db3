"""One text is one text, whichever way it comes in: argument, file, stdin; every verb."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cli.conftest import Command
from eyeline import ByteTokenizer, Transformer, TransformerConfig, save
from eyeline.errors import InvalidArgument
from eyeline.reading import decoded, lines, plain, read_file, read_stdin
from eyeline.training.rows import read_table
from eyeline.training.texts import ids_of
from models.small_encoder import write_encoder

TEXTS = ("the cat sleeps", "a very old dog")
FORMS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "a mark": lambda text: f"\ufeff{text}",
    "two signs": lambda text: text.replace("\n", "\r\n"),
    "returns": lambda text: text.replace("\n", "\r"),
    "a mark and two signs": lambda text: "\ufeff" + text.replace("\n", "\r\n"),
}
Put = Callable[[str], Path]


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    """The same bytes in a file and on stdin, which on Linux leaves line ends as they are."""

    def put(text: str) -> Path:
        data = text.encode()
        stdin = io.TextIOWrapper(io.BytesIO(data), "utf-8", newline="\n")
        monkeypatch.setattr("sys.stdin", stdin)
        (tmp_path / "text.txt").write_bytes(data)
        return tmp_path / "text.txt"

    return put


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoder") / "small")


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = TransformerConfig(vocabulary=260, width=16, hidden=17, layers=1, heads=2)
    place = tmp_path_factory.mktemp("translator") / "saved"
    return save(Transformer(config), place, tokenizer=ByteTokenizer())


@pytest.mark.parametrize("form", FORMS)
def test_embed(form: str, put: Put, eyeline: Command, encoder: Path) -> None:
    due = eyeline("embed", *TEXTS, "--model", encoder).out
    file = put(FORMS[form]("\n".join(TEXTS) + "\n"))
    for words in (("--file", file), ("-",)):
        assert eyeline("embed", *words, "--model", encoder).out == due
    assert eyeline("embed", FORMS[form](TEXTS[0]), TEXTS[1], "--model", encoder).out == due


@pytest.mark.parametrize("form", FORMS)
def test_translate(form: str, put: Put, eyeline: Command, translator: Path) -> None:
    words = ("--beams", 1, "--max-new-tokens", 4)
    due = eyeline("translate", translator, *TEXTS, *words).out
    file = put(FORMS[form]("\n".join(TEXTS)))
    assert eyeline("translate", translator, "--file", file, *words).out == due
    assert eyeline("translate", translator, "-", *words).out == due
    pairs = put(FORMS[form]("".join(f"{text}\tx\n" for text in TEXTS)))
    score = eyeline("translate", translator, "--score", pairs, *words, "--json").json
    assert [one["source"] for one in score["translations"]] == list(TEXTS)
    assert "".join(one["best"][0]["text"] + "\n" for one in score["translations"]) == due


@pytest.mark.parametrize("form", FORMS)
def test_generate(form: str, put: Put, eyeline: Command, model: Path) -> None:
    words = ("--max-new-tokens", 5, "--dtype", "float32", "--json")
    due = eyeline("generate", model, "abc\ndef\n", *words).json
    prompt = FORMS[form]("abc\ndef\n")
    put(prompt)
    for given in (prompt, "-"):
        answer = eyeline("generate", model, given, *words).json
        assert (answer["text"], answer["prompt_tokens"]) == (due["text"], due["prompt_tokens"])


@pytest.mark.parametrize("form", FORMS)
def test_compare(form: str, put: Put, eyeline: Command, model: Path, text: Path) -> None:
    words = ("--length", 131, "--rounds", 1, "--pattern", "sliding_window(7)", "--json")
    due = eyeline("compare", model, "--text", text, *words).json["rows"]
    file = put(FORMS[form](text.read_text()))
    for given in (file, "-"):
        rows = eyeline("compare", model, "--text", given, *words).json["rows"]
        assert [row["perplexity"] for row in rows] == [row["perplexity"] for row in due]


@pytest.mark.parametrize("form", FORMS)
def test_train(form: str, put: Put) -> None:
    """Rows and ids; bytes that are no text stay as they are where bytes are the tokens."""
    file = put(FORMS[form]("one\ta\ntwo\tb\n"))
    rows = [(row.first, row.second) for row in read_table(str(file), ("1", "2"))]
    assert rows == [("one", "a"), ("two", "b")]
    ids = ids_of(file.read_bytes(), ByteTokenizer(), "x")
    assert bytes(ids.tolist()) == b"one\ta\ntwo\tb\n"
    picture = b"\xff\xfe\r\n\x00"
    assert bytes(ids_of(picture, ByteTokenizer(), "x").tolist()) == picture


def test_only_the_first_mark_is_no_text() -> None:
    assert plain("\ufeff\ufeffa\ufeff\r\r\n\n\u2028b") == "\ufeffa\ufeff\n\n\n\u2028b"
    assert lines("a\u2028b\n\nc\n") == ["a\u2028b", "", "c"] and lines("") == []


def test_what_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path, reason in (
        (tmp_path / "nowhere", "nowhere: no such file"), (tmp_path, "is a directory"),
        (tmp_path / ("x" * 300), "name too long"), (f"{tmp_path}/a\0b", "null"),
    ):  # fmt: skip
        with pytest.raises(InvalidArgument, match=reason):
            read_file(path)
        with pytest.raises(InvalidArgument, match="--text here: "):
            read_file(path, "--text here")
    with pytest.raises(InvalidArgument, match=r"it, line 3: not UTF-8 text \(byte 5\)"):
        decoded(b"a\nb\n\n\xff"[:4] + b"c\xff", "it")
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InvalidArgument, match="stdin: it is closed"):
        read_stdin()
