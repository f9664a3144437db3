"""The examples that write data: what they write, and that nothing leaks into what is held out."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / name), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True)


def rows(file: Path) -> list[list[str]]:
    return [line.split("\t") for line in file.read_text("utf-8").splitlines()]


def words(name: str) -> str:
    return " ".join(sorted(re.findall(r"\w+", name.casefold())))


def test_names_in_spanish(tmp_path: Path) -> None:
    done = run("names.py", "--language", "es", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    train, held_out = rows(tmp_path / "train.tsv"), rows(tmp_path / "held_out.tsv")
    assert ["Germany", "Alemania"] in train + held_out and len(train) > 1500 < 9 * len(held_out)
    assert all(len(row) == 2 and all(row) for row in train + held_out)
    names = [name for name, _ in train + held_out]
    assert len(set(names)) == len(names)
    assert not {words(name) for name, _ in train} & {words(name) for name, _ in held_out}
    copies = sum(one == other for one, other in held_out)
    assert f"{100 * copies / len(held_out):.1f} % the same word" in done.stdout.splitlines()[1]
    before = (tmp_path / "train.tsv").read_bytes()
    run("names.py", "--language", "es", "--out", tmp_path)
    assert (tmp_path / "train.tsv").read_bytes() == before


def test_an_unknown_language_is_told(tmp_path: Path) -> None:
    done = run("names.py", "--language", "xx", "--out", tmp_path / "none")
    assert done.returncode == 1 and "no names in 'xx'; it has" in done.stderr
    assert not (tmp_path / "none").exists()


def test_languages(tmp_path: Path) -> None:
    done = run("languages.py", "--out", tmp_path, "--most", 400)
    assert done.returncode == 0, done.stderr
    train, held_out = rows(tmp_path / "train.tsv"), rows(tmp_path / "held_out.tsv")
    labels = {label for _, label in train}
    assert labels == {label for _, label in held_out} and len(labels) == 10
    texts = [text for text, _ in train + held_out]
    assert len(set(texts)) == len(texts) == 4000
    assert not {"Peru", "France"} & set(texts)  # names that several languages share
