"""Two processes on this machine train what one trains: the gradient is that of the whole batch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from eyeline.training.processes import Processes
from training.tiny import tiny_run, trainer_of, write_text

TASKS = ("lm", "mlm", "classify", "seq2seq")


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("count", [2, 5])
def test_shares_add_up_to_the_whole(task: str, count: int, tmp_path: Path) -> None:
    """Gradients of all shares, each divided by the targets of all, without the network."""
    run = tiny_run(task, tmp_path)
    whole = trainer_of(run)
    for step in (1, 2, 7):
        batch = whole.task.batch(step, Processes())
        (whole.task.loss(batch.rows) / batch.targets).backward()
        expected = {n: p.grad for n, p in whole.model.named_parameters() if p.grad is not None}
        whole.model.zero_grad()
        parts = [whole.task.batch(step, Processes(rank, count)).part for rank in range(count)]
        assert sum(parts) == pytest.approx(1.0) and batch.part == 1.0
        for rank in range(count):
            part = whole.task.batch(step, Processes(rank, count))
            assert (part.targets, part.tokens) == (batch.targets, batch.tokens)
            if part.rows is not None:
                (whole.task.loss(part.rows) / part.targets).backward()
        for name, parameter in whole.model.named_parameters():
            assert (parameter.grad is None) == (name not in expected)
            if parameter.grad is not None:
                due = expected[name]
                torch.testing.assert_close(parameter.grad, due, atol=1e-6, rtol=1e-4)
        whole.model.zero_grad()


@pytest.mark.slow
def test_two_processes_equal_one_after_twenty_steps(tmp_path: Path) -> None:
    text = write_text(tmp_path, 2000)
    words = ("train", "lm", str(text), "--layers", "2", "--width", "32", "--heads", "2", "--length",
             "31", "--batch-tokens", "250", "--steps", "20", "--rate", "1e-3", "--every", "10",
             "--precision", "float32", "--json")  # fmt: skip
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    for name, start in (("one", ()), ("two", torchrun)):
        done = subprocess.run(
            [sys.executable, *start, "-m", "eyeline", *words, "--out", str(tmp_path / name)],
            env=env, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.count('"steps": 20') == 2, done.stdout  # told once, as asked and done
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for name in one:
        torch.testing.assert_close(one[name], two[name], atol=1e-5, rtol=0)
