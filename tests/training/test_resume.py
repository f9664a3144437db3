"""Going on: bit for bit, from folders that were left at any moment, and not as another run."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from eyeline.errors import CheckpointError, EyelineError, InvalidArgument
from eyeline.loading import load
from eyeline.training import train
from eyeline.training.loop import read_metrics
from eyeline.training.states import last_step, read_run, read_state, states, write_state
from training.tiny import tiny_run, trainer_of

TASKS = ("lm", "mlm", "classify", "seq2seq")


class Stop(Exception):
    """A process that ends in the middle."""


def until(step: int) -> Any:
    def tell(told: Any) -> None:
        if told.stepped.step == step:
            raise Stop

    return tell


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(load_file(folder / "model.safetensors"))


def same(one: Path, other: Path) -> bool:
    first, second = weights(one), weights(other)
    return first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)


@pytest.mark.parametrize("task", TASKS)
def test_resumed_is_unbroken_bit_for_bit(task: str, tmp_path: Path) -> None:
    run = tiny_run(task, tmp_path, dropout=0.0 if task == "lm" else 0.1)
    whole = train(run, tmp_path / "whole", every=4)
    for stop in (6, 9):
        with pytest.raises(Stop):
            train(run, tmp_path / "parts", every=4, resume=stop > 6, tell=until(stop))
    done = train(run, tmp_path / "parts", every=4, resume=True)
    assert (done.began, done.steps, done.warnings) == (8, 11, [])
    assert same(tmp_path / "whole", tmp_path / "parts")
    assert done.measured == whole.measured != {}
    lines = [read_metrics(tmp_path / name) for name in ("whole", "parts")]
    for line in (*lines[0], *lines[1]):
        line.pop("seconds", None)
    assert lines[0] == lines[1]
    assert [line["step"] for line in lines[0] if "loss" in line] == list(range(1, 12))


def test_the_folder_is_ready_to_use_from_the_beginning(tmp_path: Path) -> None:
    run = tiny_run("lm", tmp_path)
    with pytest.raises(Stop):
        train(run, tmp_path / "out", tell=until(1))
    found = load(tmp_path / "out")
    assert found.tokenizer is not None and last_step(tmp_path / "out") == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "text.txt"]


def test_what_is_done_is_done(tmp_path: Path) -> None:
    run = tiny_run("lm", tmp_path)
    train(run, tmp_path / "out")
    before = weights(tmp_path / "out")
    done = train(run, tmp_path / "out", resume=True)
    assert done.began == done.steps == 11
    assert all(torch.equal(before[n], weights(tmp_path / "out")[n]) for n in before)
    more = train(replace(run, course=replace(run.course, steps=13)), tmp_path / "out", resume=True)
    assert (more.began, more.steps) == (11, 13)


def test_the_last_two_states_are_kept(tmp_path: Path) -> None:
    train(tiny_run("lm", tmp_path), tmp_path / "out", every=3)
    assert [path.name[-2:] for path in states(tmp_path / "out")] == ["09", "11"]


@pytest.mark.parametrize("damage", ["cut", "gone", "json"])
def test_a_damaged_state_is_passed_over(damage: str, tmp_path: Path) -> None:
    run, out = tiny_run("lm", tmp_path), tmp_path / "out"
    train(run, out, every=4)
    newest = states(out)[-1]
    tensors, state = newest / "tensors.safetensors", newest / "state.json"
    if damage == "cut":
        tensors.write_bytes(tensors.read_bytes()[:-7])
    elif damage == "gone":
        tensors.unlink()
    else:
        state.write_text('{"step": -1}')
    before = weights(out)
    done = train(run, out, every=4, resume=True)
    assert done.began == 8 and len(done.warnings) == 1
    assert all(torch.equal(before[n], weights(out)[n]) for n in before)


def test_no_state_at_all(tmp_path: Path) -> None:
    run, out = tiny_run("lm", tmp_path), tmp_path / "out"
    train(run, out)
    for state in states(out):
        (state / "state.json").write_text("")
    with pytest.raises(CheckpointError, match=r"state\.json"):
        train(run, out, resume=True)
    with pytest.raises(CheckpointError, match="no training was begun there"):
        train(run, tmp_path / "nowhere", resume=True)


def test_half_a_line_of_metrics_is_dropped(tmp_path: Path) -> None:
    run, out = tiny_run("lm", tmp_path), tmp_path / "out"
    with pytest.raises(Stop):
        train(run, out, every=4, tell=until(7))
    with (out / "metrics.jsonl").open("a") as file:
        file.write('{"step": 8, "lo')
    assert [line["step"] for line in read_metrics(out) if "loss" in line] == list(range(1, 8))
    train(run, out, every=4, resume=True)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 12))
    assert [line["step"] for line in lines if "measured" in line] == [4, 8, 11]
    tokens = [line["tokens"] for line in lines if "loss" in line]
    assert tokens == [tokens[0] * i for i in range(1, 12)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 24}, "width: 22 there, 24 asked for"),
        ({"pattern": ("sliding_window(3)",)}, r"none given there, sliding_window\(3\) asked for"),
        ({"seed": 8, "layers": 1}, "layers: 2 there, 1 asked for; seed: 7 there, 8 asked for"),
    ],
)
def test_another_run_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    train(tiny_run("lm", tmp_path), tmp_path / "out")
    with pytest.raises(InvalidArgument, match=message):
        train(tiny_run("lm", tmp_path, **changes), tmp_path / "out", resume=True)


def test_other_data_are_refused(tmp_path: Path) -> None:
    run = tiny_run("lm", tmp_path)
    train(run, tmp_path / "out")
    text = tmp_path / "text.txt"
    elsewhere = tmp_path / "elsewhere.txt"
    elsewhere.write_text(text.read_text())
    moved = replace(run, source=replace(run.source, files=(str(elsewhere),)))
    assert train(moved, tmp_path / "out", resume=True).began == 11
    elsewhere.write_text(text.read_text() + "!")
    with pytest.raises(CheckpointError, match="not those that this training began with"):
        train(moved, tmp_path / "out", resume=True)


def test_a_state_of_another_shape(tmp_path: Path) -> None:
    one = trainer_of(tiny_run("lm", tmp_path))
    one.advance()
    write_state(tmp_path, one)
    with pytest.raises(CheckpointError, match=r"norm is \(22,\), not \(24,\)"):
        read_state(tmp_path, trainer_of(tiny_run("lm", tmp_path, width=24)))
    with pytest.raises(CheckpointError, match=r"layers\.2"):
        read_state(tmp_path, trainer_of(tiny_run("lm", tmp_path, layers=3)))


def test_a_folder_that_is_not_empty(tmp_path: Path) -> None:
    run, out = tiny_run("lm", tmp_path), tmp_path / "out"
    out.mkdir()
    train(run, out)  # an empty one is as good as none
    with pytest.raises(InvalidArgument, match=r"--resume goes on .* --force replaces it"):
        train(run, out)
    before = weights(out)
    train(tiny_run("lm", tmp_path, seed=8), out, force=True)
    assert not torch.equal(before["norm"], weights(out)["norm"])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "text.txt"]


def test_force_keeps_what_training_did_not_write(tmp_path: Path) -> None:
    run, out = tiny_run("lm", tmp_path), tmp_path / "out"
    train(run, out)
    (out / "notes.txt").write_text("mine")
    with pytest.raises(InvalidArgument, match=r"holds notes\.txt, which training did not write"):
        train(run, out, force=True)
    assert (out / "notes.txt").read_text() == "mine"


def test_a_link_to_a_folder_stays_a_link(tmp_path: Path) -> None:
    run, real, link = tiny_run("lm", tmp_path), tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real, target_is_directory=True)
    assert train(run, link).folder == link
    assert link.is_symlink() and (real / "model.safetensors").is_file()


def test_fewer_steps_than_are_done_are_refused(tmp_path: Path) -> None:
    run, out = tiny_run("lm", tmp_path), tmp_path / "out"
    train(run, out)
    fewer = replace(run, course=replace(run.course, steps=5))
    with pytest.raises(InvalidArgument, match="steps=5: 11 are done already"):
        train(fewer, out, resume=True)
    assert read_run(out) == run


def test_strangers_folders_are_not_replaced(tmp_path: Path) -> None:
    run, out = tiny_run("lm", tmp_path), tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    with pytest.raises(InvalidArgument, match="holds no trained model, so it is not replaced"):
        train(run, out, force=True)
    with pytest.raises(InvalidArgument, match="it is a file"):
        train(run, out / "thesis.txt", force=True)
    assert (out / "thesis.txt").read_text() == "years of work"


def test_divergence_keeps_the_last_good_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = tiny_run("lm", tmp_path, rate=1e30, warmup=0), tmp_path / "out"
    with pytest.raises(EyelineError, match=r"at step \d+; what was stored at step 0 is kept in"):
        train(run, out)
    assert last_step(out) == 0
    assert all(bool(torch.isfinite(x).all()) for x in weights(out).values())


MOMENTS = {
    "before the state": "eyeline.training.loop.write_state",
    "in the state": "eyeline.training.states._rename",
    "before the model": "eyeline.training.loop.save",
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_folder_is_readable_whatever_moment_it_ends_at(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out, calls = tiny_run("lm", tmp_path), tmp_path / "out", [0]
    module, _, name = MOMENTS[moment].rpartition(".")
    inner = getattr(import_module(module), name)

    def ends(*values: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] == 3:
            raise Stop
        return inner(*values, **named)

    monkeypatch.setattr(MOMENTS[moment], ends)
    with pytest.raises(Stop):
        train(run, out, every=4)
    monkeypatch.undo()
    load(out)
    train(run, out, every=4, resume=True)
    train(run, tmp_path / "whole", every=4)
    assert same(out, tmp_path / "whole")


def test_every_is_at_least_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="every=0"):
        train(tiny_run("lm", tmp_path), tmp_path / "out", every=0)
