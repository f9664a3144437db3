"""What k-means routing asks for beside the task's loss is minimised with it, and told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from eyeline.layers import MultiHeadAttention
from eyeline.mechanisms.base import auxiliary_loss
from eyeline.mechanisms.routed.kmeans import KMeans
from eyeline.training.loop import Loop, read_metrics
from eyeline.training.processes import ALONE, Processes
from eyeline.training.trainer import Diverged, Trainer
from training.tiny import tiny_run, trainer_of


def routed(tmp_path: Path, commitment: float = 0.5, **changes: Any) -> Trainer:
    """A tiny masked language model whose layers look by k-means routing."""
    trainer = trainer_of(tiny_run("mlm", tmp_path, **changes))
    layers = [m for m in trainer.model.modules() if isinstance(m, MultiHeadAttention)]
    for layer in layers:
        layer.mechanism = KMeans(
            3, 5, num_heads=layer.num_heads, head_dim=layer.head_dim, commitment=commitment
        )
    assert layers
    return trainer


def centroids(model: nn.Module) -> list[Tensor]:
    return [m.centroids for m in model.modules() if isinstance(m, KMeans)]


def test_the_gradient_is_of_both(tmp_path: Path) -> None:
    mine, other = routed(tmp_path), routed(tmp_path)
    other.model.train()
    torch.manual_seed(0)
    batch = other.task.batch(1, ALONE)
    loss = other.task.loss(batch.rows) / batch.targets
    beside = auxiliary_loss(other.model)
    assert beside is not None and beside > 0
    (loss + beside).backward()
    told = mine.advance()
    assert told.auxiliary == pytest.approx(float(beside.detach()), rel=1e-4)
    assert told.loss == pytest.approx(float(loss.detach()), rel=1e-4)
    squares = sum(float(p.grad.double().square().sum()) for p in other.model.parameters()
                  if p.grad is not None)  # fmt: skip
    assert told.norm == pytest.approx(squares**0.5, rel=1e-3)
    for one, two in zip(centroids(mine.model), centroids(other.model), strict=True):
        torch.testing.assert_close(one, two, atol=1e-5, rtol=0)


def test_metrics_name_it(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    for trainer, named in (
        (routed(tmp_path, steps=2), True),
        (trainer_of(tiny_run("mlm", tmp_path, steps=2)), False),
    ):
        loop = Loop(trainer, tmp_path / "out", None, every=100)  # type: ignore[arg-type]
        loop.store = lambda: None  # type: ignore[method-assign]
        loop.run()
        lines = [line for line in read_metrics(tmp_path / "out") if "loss" in line]
        assert len(lines) == 2 and all(("auxiliary" in line) == named for line in lines)


def test_a_loss_beside_that_is_not_finite_stops(tmp_path: Path) -> None:
    trainer = routed(tmp_path, commitment=3e38)
    with pytest.raises(Diverged, match="the loss is inf at step 1"):
        trainer.advance()
    assert trainer.step == 0


@pytest.mark.parametrize("count", [3, 40])
def test_it_is_whole_however_many_have_no_rows(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eyeline.training.trainer.auxiliary_loss", lambda model: torch.tensor(2.0))
    trainers = [routed(tmp_path) for _ in range(count)]
    batches = [t.task.batch(1, Processes(rank, count)) for rank, t in enumerate(trainers)]
    assert sum(batch.rows is None for batch in batches) == max(count - 7, 0)
    beside = [t._losses(batch)[1] for t, batch in zip(trainers, batches, strict=True)]
    assert sum(beside) == pytest.approx(2.0)


PROGRAM = """
import sys
import torch
from torch import distributed
from eyeline.training.processes import joined, leave
processes = joined()
numbers, begun = torch.full((3,), float(processes.rank)), torch.tensor(processes.rank == 1)
processes.agree([numbers, begun])
assert numbers.tolist() == [1.0] * 3 and bool(begun)
leave()
"""


@pytest.mark.slow
def test_all_processes_have_the_last_ones_centroids(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = subprocess.run(
        [sys.executable, *torchrun, str(tmp_path / "program.py")],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
