"""`eyeline translate`: a line for a text, scores where they are asked for, mistakes in one line."""

from __future__ import annotations

import io
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from cli.conftest import Command
from eyeline.loading import save
from eyeline.models import Transformer, TransformerConfig
from eyeline.tokenizer import ByteTokenizer
from eyeline.translation import report, translate

TEXTS = ["Chad", "Peru", "Mali and more"]


@pytest.fixture(scope="session")
def translator() -> Transformer:
    """A random model of bytes that prefers some letters, and comes to an end."""
    torch.manual_seed(0)
    config = TransformerConfig(vocabulary=260, width=16, hidden=17, layers=1, heads=2, tied=False)
    model = Transformer(config)
    with torch.no_grad():
        torch.nn.init.normal_(model.head.weight, std=0.7)
        for index in range(260):
            if index not in (*b"abcdefgh", model_end()):
                model.head.weight[index] = 0.0
    return model.eval()


def model_end() -> int:
    return ByteTokenizer.eos_id


@pytest.fixture(scope="session")
def folder(translator: Transformer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("translator") / "saved"
    return save(translator, place, tokenizer=ByteTokenizer())


def said(model: Transformer, **options: Any) -> list[list[Any]]:
    return translate(model, ByteTokenizer(), TEXTS, **options)


def test_a_line_for_a_text(eyeline: Command, folder: Path, translator: Transformer) -> None:
    found = eyeline("translate", folder, *TEXTS, "--max-new-tokens", 5)
    assert found.status == 0
    want = said(translator, max_new_tokens=5)
    assert found.out.splitlines() == [answers[0].text for answers in want]
    cut = sum(not answers[0].finished for answers in want)
    assert cut and f"{cut} of 3 did not come to an end; --max-new-tokens" in found.err


@pytest.mark.parametrize(("beams", "best"), [(1, 1), (3, 2)])
def test_the_best_with_scores(
    beams: int, best: int, eyeline: Command, folder: Path, translator: Transformer
) -> None:
    options = ("--beams", beams, "--best", best, "--length-penalty", 0.5)
    found = eyeline("translate", folder, *TEXTS, *options, "--json")
    want = said(translator, beams=beams, length_penalty=0.5)
    listed = found.json["translations"]
    assert [one["source"] for one in listed] == TEXTS and found.err == ""
    for one, answers in zip(listed, want, strict=True):
        assert [each["text"] for each in one["best"]] == [each.text for each in answers[:best]]
        assert one["best"][0]["score"] == pytest.approx(answers[0].score, abs=1e-5)
    if best > 1:
        lines = eyeline("translate", folder, TEXTS[0], *options).out.splitlines()
        assert lines[0] == "Chad" and len(lines) == 1 + best
        assert lines[1].split()[0] == f"{want[0][0].score:.4f}"


def test_lines_of_a_file_and_of_stdin(
    eyeline: Command, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(TEXTS), "utf-8")
    words = ("--max-new-tokens", 5)
    want = eyeline("translate", folder, *TEXTS, *words).out
    assert eyeline("translate", folder, "--file", file, *words).out == want
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(TEXTS)))
    assert eyeline("translate", folder, "-", *words).out == want


def test_a_score_stands_beside_copying(
    eyeline: Command, folder: Path, tmp_path: Path, translator: Transformer
) -> None:
    file, references = tmp_path / "pairs.tsv", ["Tschad", "Peru", "Mali und mehr"]
    file.write_text("".join(f"{a}\t{b}\n" for a, b in zip(TEXTS, references, strict=True)), "utf-8")
    words = ("translate", folder, "--score", file, "--beams", 1)
    answers = [one[0].text for one in said(translator, beams=1)]
    want = report(TEXTS, answers, references)
    assert eyeline(*words, "--json").json["report"] == pytest.approx(asdict(want))
    shown = eyeline(*words).out
    assert "copying the source" in shown and "33 %" in shown
    assert "3 pairs, 2 changed by the reference" in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give one TEXT or several, or --file"),
        (("a", "--file", "b"), "give one TEXT or several, or --file"),
        (("",), "text 1 of the command line: the text is empty"),
        (("a", " "), "text 2 of the command line: the text is empty"),
        (("--file", "none.txt"), "none.txt: no such file"),
        (("--score", "none.tsv"), "none.tsv: no such file"),
        (("a", "--score", "none.tsv"), "--score has its own texts"),
        (("a", "--best", 5), "--best 5 of --beams 4"),
        (("a", "--beams", 0), "--beams"),
        (("a", "--length-penalty", 99), "length_penalty=99"),
    ],
)
def test_mistakes_are_told_in_one_line(
    words: tuple[object, ...], said: str, eyeline: Command, folder: Path
) -> None:
    found = eyeline("translate", folder, *words)
    assert (found.status, found.out) == (2, "")
    assert said in found.err and found.err.count("\n") == 1


def test_a_broken_line_of_pairs_has_its_number(
    eyeline: Command, folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text("Chad\tTschad\nPeru\n")
    found = eyeline("translate", folder, "--score", file)
    assert found.status == 2 and "pairs.tsv, line 2: column 2 is missing" in found.err


def test_another_kind_of_folder_is_refused(
    eyeline: Command, model: Path, translator: Transformer, tmp_path: Path
) -> None:
    found = eyeline("translate", model, "a")
    assert found.status == 2 and "holds a Llama: translate needs a model that reads" in found.err
    save(translator, tmp_path / "mute")
    found = eyeline("translate", tmp_path / "mute", "a")
    assert found.status == 2 and "there is no tokenizer in it" in found.err
    found = eyeline("translate", tmp_path / "nowhere", "a")
    assert found.status == 2 and found.err.count("\n") == 1
