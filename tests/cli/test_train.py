"""`eyeline train`: what comes out, in words and as JSON, and every mistake in one line."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Command
from eyeline.cli.options import ModelDtype
from eyeline.cli.train import Options, new_run
from eyeline.errors import InvalidArgument
from eyeline.training.loop import read_metrics
from eyeline.training.run import Course, Run, Shape, Source
from eyeline.training.states import last_step, read_run
from training.tiny import write_table, write_text

SMALL = ("--layers", 1, "--width", 16, "--heads", 1, "--length", 31, "--batch-tokens", 130)
STEPS = ("--steps", 7, "--every", 3)


def test_a_language_model_writes_afterwards(eyeline: Command, tmp_path: Path) -> None:
    text, out = write_text(tmp_path), tmp_path / "out"
    found = eyeline("train", "lm", text, "--out", out, *SMALL, *STEPS)
    assert found.status == 0, found.err
    first, *lines = found.err.splitlines()
    assert re.match(r"Llama of [\d.]+k parameters \(1 layers of 16, 1 heads\) · ", first), first
    assert [line.split(" · ")[0] for line in lines] == [f"step {i} of 7" for i in (3, 6, 7)]
    assert all("bits per byte" in line and "tokens/s" in line for line in lines)
    assert "bits per byte" in found.out and f"next: eyeline generate {out}" in found.out
    assert {p.name for p in out.iterdir()} == {
        "eyeline.json", "model.safetensors", "metrics.jsonl", "loss.png", "training",
    }  # fmt: skip
    written = eyeline("generate", out, "the ", "--max-new-tokens", 5, "--json")
    assert written.status == 0 and written.json["new_tokens"] <= 5


@pytest.mark.parametrize("task", ["mlm", "classify", "seq2seq"])
def test_the_other_tasks(task: str, eyeline: Command, tmp_path: Path) -> None:
    pairs = task == "seq2seq"
    file = write_text(tmp_path) if task == "mlm" else write_table(tmp_path, pairs=pairs)
    found = eyeline("train", task, file, "--out", tmp_path / "out", *SMALL, *STEPS, "--json")
    assert (found.status, found.err) == (0, "")
    answer = found.json
    assert (answer["steps"], answer["began"], answer["interrupted"]) == (7, 0, False)
    assert answer["run"]["task"] == task and set(answer["measured"]) > {"loss"}
    if task == "classify":
        notes = json.loads((tmp_path / "out" / "eyeline.json").read_text())["notes"]
        assert notes == {"classes": ["a", "b", "c"]} and answer["facts"]["classes"] == list("abc")
    if task == "seq2seq":
        assert eyeline("translate", tmp_path / "out", "the fox", "--max-new-tokens", 5).status == 0
    if task == "mlm":
        assert eyeline("embed", "a fox", "--model", tmp_path / "out", "--json").status == 0


def test_resuming_takes_what_is_not_asked_from_the_folder(eyeline: Command, tmp_path: Path) -> None:
    text, out = write_text(tmp_path), tmp_path / "out"
    words = ("--pattern", "sliding_window(5)", "--rate", 0.004, "--validation", 0.2)
    assert eyeline("train", "lm", text, "--out", out, *SMALL, *STEPS, *words).status == 0
    before = read_run(out)
    found = eyeline("train", "lm", "--out", out, "--resume", "--steps", 9, "--json")
    assert (found.json["began"], found.json["steps"]) == (7, 9)
    after = read_run(out)
    assert (after.shape, after.source) == (before.shape, before.source)
    assert [line["step"] for line in read_metrics(out) if "loss" in line] == list(range(1, 10))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--width", 32), "width: 16 there, 32 asked for"),
        (("--size", "tiny"), "layers: 1 there, 2 asked for; width: 16 there, 64 asked for"),
        (("--pattern", "streaming(4, 1)"), "pattern: none given there, causal & "),
        (("--mechanism", "additive"), "mechanism: exact there, additive asked for"),
        (("--force",), "--resume goes on and --force begins anew"),
    ],
)
def test_another_run_is_not_resumed(
    words: tuple[object, ...], message: str, eyeline: Command, tmp_path: Path
) -> None:
    text, out = write_text(tmp_path), tmp_path / "out"
    eyeline("train", "lm", text, "--out", out, *SMALL, *STEPS)
    found = eyeline("train", "lm", "--out", out, "--resume", *words)
    assert found.status == 2 and message in found.err and found.err.count("\n") == 1
    assert "task: lm there, mlm asked for" in eyeline("train", "mlm", "--out", out, "--resume").err


@pytest.mark.parametrize(
    ("task", "words", "message"),
    [
        ("lm", (), "no files to train on: name at least one"),
        ("lm", ("{text}", "--pattern", "window(3, 3)"), "token 0 would see token 1"),
        ("lm", ("{text}", "--pattern", "windw(3)"), "windw"),
        ("lm", ("{text}", "--pattern", "1: causal"), "there is no layer 1, they are 0 to 0"),
        ("lm", ("{text}", "--mechanism", "guess"), "there is no mechanism 'guess'"),
        ("lm", ("{text}", "--size", "huge"), "size 'huge': there are tiny, mini, small"),
        ("lm", ("{text}", "--model", "bert"), "lm trains llama or gpt2"),
        ("lm", ("{text}", "--tokenizer", "{text}x"), "a tokenizer.json, or a folder with one"),
        ("lm", ("{empty}",), "it is empty"),
        ("mlm", ("{text}", "--held-out", "{text}x"), "no such file"),
        ("classify", ("{text}",), "line 1: column 2 is missing"),
        ("classify", ("{single}",), "have the class 'a'"),
        ("classify", ("{text}", "--columns", "1"), "--columns '1': two numbers or names"),
        ("seq2seq", ("{half}",), "half.tsv, line 2: column 2 is missing or empty"),
        ("lm", ("{text}", "--columns", "1,2"), "No such option: --columns"),
        ("lm", ("{text}", "--resume"), "no training was begun there"),
    ],
)
def test_mistakes(
    task: str, words: tuple[str, ...], message: str, eyeline: Command, tmp_path: Path
) -> None:
    files: dict[str, Any] = {"text": write_text(tmp_path)}
    contents = (("empty", ""), ("single", "x\ta\ny\ta\n"), ("half", "x\ta\ny\n"))
    for name, content in contents:
        files[name] = tmp_path / f"{name}.tsv"
        files[name].write_text(content)
    told = [word.format(**files) for word in words]
    found = eyeline("train", task, *told, "--out", tmp_path / "out", *SMALL, *STEPS)
    assert found.status == 2 and found.out == "", found
    assert message in found.err and found.err.count("\n") == 1, found.err
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_not_empty(eyeline: Command, tmp_path: Path) -> None:
    text, out = write_text(tmp_path), tmp_path / "out"
    words = ("train", "lm", text, "--out", out, *SMALL, *STEPS)
    assert eyeline(*words).status == 0
    found = eyeline(*words)
    assert found.status == 2 and "--resume goes on" in found.err
    assert eyeline(*words, "--force").status == 0


def test_a_loss_that_is_no_number(eyeline: Command, tmp_path: Path) -> None:
    text, out = write_text(tmp_path), tmp_path / "out"
    found = eyeline("train", "lm", text, "--out", out, *SMALL, *STEPS, "--rate", "1e30")
    assert found.status == 2
    assert re.search(r"at step \d+; what was stored at step 0 is kept", found.err), found.err


def test_a_prompt_longer_than_learned_positions(eyeline: Command, tmp_path: Path) -> None:
    text, out = write_text(tmp_path), tmp_path / "out"
    eyeline("train", "lm", text, "--out", out, "--model", "gpt2", *SMALL, *STEPS)
    found = eyeline("generate", out, "x" * 40)
    assert found.status == 2 and "31" in found.err


def test_ctrl_c_stores_and_says_how_to_go_on(tmp_path: Path) -> None:
    text, out = write_text(tmp_path), tmp_path / "out"
    words = ["train", "lm", text, "--out", out, *SMALL, "--steps", 10**6, "--every", 10**6]
    with subprocess.Popen(
        [sys.executable, "-m", "eyeline", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        while process.poll() is None and len(read_metrics(out)) < 4:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        told, errors = (each.decode() for each in process.communicate(timeout=60))
    assert process.returncode == 130, errors
    assert f"interrupted; go on with: eyeline train lm --out {out} --resume" in told
    steps = [line["step"] for line in read_metrics(out)]
    assert last_step(out) == steps[-1] == len(steps) > 3


def test_columns_are_two() -> None:
    asked = Options(Path("x"), files=["x"], columns="a, b")
    assert new_run("classify", asked).source.columns == ("a", "b")
    with pytest.raises(InvalidArgument, match="two numbers or names"):
        new_run("classify", replace(asked, columns="a,b,c"))


def test_every_option_reaches_the_run() -> None:
    """Each field of the options is a field of the run, or is named here."""
    elsewhere = {"out", "files", "model", "size", "every", "resume", "force", "as_json"}
    of_run = {field.name for part in (Shape, Source, Course) for field in fields(part)}
    names = {field.name for field in fields(Options)}
    assert names - of_run == elsewhere - {"files"} and elsewhere <= names
    assert of_run - names == {"family"}  # --model
    asked = Options(
        Path("x"), files=["a", "b"], model="gpt2", size="tiny", layers=3, width=32, heads=4,
        length=99, pattern="0: causal; 1-2: full", mechanism="linear", dropout=0.2,
        columns="3,4", tokenizer="t.json", held_out="h", validation=0.3, steps=7,
        batch_tokens=11, rate=0.5, warmup=2, weight_decay=0.6, clip=0.7,
        precision=ModelDtype.bfloat16, seed=13,
    )  # fmt: skip
    assert new_run("lm", asked) == Run(
        "lm",
        Shape("gpt2", 3, 32, 4, 99, ("causal", "full", "full"), "linear", 0.2),
        Source(("a", "b"), "h", 0.3, ("3", "4"), "t.json"),
        Course(7, 11, 0.5, 2, 0.6, 0.7, "bfloat16", 13),
    )
    plain = new_run("lm", Options(Path("x"), files=["a"], seed=0, warmup=0, dropout=0.0))
    assert (plain.course.warmup, plain.course.steps, plain.shape.width) == (0, 2000, 256)


@pytest.mark.parametrize(
    ("verb", "without"),
    [
        ("lm", {"columns"}), ("mlm", {"columns", "model"}), ("classify", {"model"}),
        ("seq2seq", {"model"}),
    ],
)  # fmt: skip
def test_the_parameters_are_the_options(eyeline: Command, verb: str, without: set[str]) -> None:
    shown = eyeline("train", verb, "--help").out
    for field in fields(Options):
        name = {"files": "FILE", "as_json": "--json"}.get(
            field.name, f"--{field.name.replace('_', '-')}"
        )
        listed = any(line.split()[:1] == [name] for line in shown.splitlines())
        assert listed == (field.name not in without), name
