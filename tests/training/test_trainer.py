"""Steps against a loop of torch's own parts; what stops them; and the pieces they are made of."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from eyeline.errors import InvalidArgument
from eyeline.hashing import mixed
from eyeline.models.base import LanguageModel
from eyeline.patterns import Causal, sliding_window
from eyeline.training.classification import classes_of
from eyeline.training.masked import hide
from eyeline.training.processes import ALONE
from eyeline.training.rows import Row
from eyeline.training.run import Run
from eyeline.training.trainer import Diverged, rate_at
from training.tiny import tiny_run, trainer_of

TASKS = ("lm", "mlm", "classify", "seq2seq")


def test_the_schedule_goes_up_in_a_line_and_down_half_a_cosine() -> None:
    rates = [rate_at(i, steps=103, highest=2.0, warmup=3) for i in range(1, 104)]
    assert rates[:3] == pytest.approx([2 / 3, 4 / 3, 2.0])
    assert rates[52] == pytest.approx(1.1) and rates[-1] == pytest.approx(0.2)
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert rate_at(1, steps=1, highest=2.0, warmup=1) == 2.0


def test_chance_depends_on_seed_and_place() -> None:
    assert mixed(1, "a", 2) == mixed(1, "a", 2) < 2**63
    assert len({mixed(1, "a", 2), mixed(2, "a", 2), mixed(1, "b", 2), mixed(1, "a", 3)}) == 4


def test_steps_equal_those_of_torchs_own_parts(tmp_path: Path) -> None:
    """Plain AdamW, plain clipping, logits and losses of each row by hand, in float32."""
    run = tiny_run("lm", tmp_path, clip=0.7)
    mine, other = trainer_of(run), trainer_of(run)
    model = other.task.model
    assert isinstance(model, LanguageModel)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    plain = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        betas=(0.9, 0.95), foreach=False, fused=False,
    )  # fmt: skip
    for step in range(1, 6):
        told = mine.advance()
        rows = other.task.batch(step, ALONE).rows
        losses = [functional.cross_entropy(model(row[None, :-1])[0], row[1:]) for row in rows]
        loss = torch.stack(losses).mean()
        plain.zero_grad()
        loss.backward()
        squares = sum(float(p.grad.double().square().sum()) for p in model.parameters())
        norm = math.sqrt(squares)
        for p in model.parameters():
            assert p.grad is not None
            p.grad *= min(1.0, 0.7 / norm)
        for group in plain.param_groups:
            group["lr"] = rate_at(step, steps=11, highest=5e-3, warmup=3)
        plain.step()
        assert told.loss == pytest.approx(loss.item(), rel=1e-5)
        assert told.norm == pytest.approx(norm, rel=1e-4)
    for one, two in zip(mine.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one, two, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("task", TASKS)
def test_each_task_learns(task: str, tmp_path: Path) -> None:
    trainer = trainer_of(tiny_run(task, tmp_path, steps=40, rate=1e-2, batch_tokens=397))
    before = trainer.measure()
    losses = [trainer.advance().loss for _ in range(40)]
    after = trainer.measure()
    assert after["loss"] < before["loss"] and sum(losses[-5:]) < sum(losses[:5])
    assert trainer.task.main in after and not trainer.model.training
    assert trainer.measure() == after


def test_bits_per_byte_are_those_of_the_held_out_text(tmp_path: Path) -> None:
    """Every held-out token by itself, after what its window has before it."""
    trainer = trainer_of(tiny_run("lm", tmp_path))
    found = trainer.measure()
    task: Any = trainer.task
    total, count = 0.0, 0
    for window in task._measured:
        ids = task._ids[window.start : window.start + window.length + 1].long()
        with torch.no_grad():
            chances = task.model(ids[None, :-1])[0].double().log_softmax(-1)
        for place in range(window.seen, window.length):
            total, count = total - float(chances[place, ids[place + 1]]), count + 1
    assert found["loss"] == pytest.approx(total / count, rel=1e-5)
    assert found["bits_per_byte"] == pytest.approx(total / count / math.log(2), rel=1e-5)


def test_bfloat16_is_close_to_float32(tmp_path: Path) -> None:
    one, other = (
        trainer_of(tiny_run("lm", tmp_path, precision=precision))
        for precision in ("float32", "bfloat16")
    )
    for _ in range(3):
        first, second = one.advance(), other.advance()
        assert second.loss == pytest.approx(first.loss, rel=0.02) and second.loss != first.loss
    assert all(p.dtype == torch.float32 for p in other.model.parameters())


def test_a_loss_that_is_no_number_stops_before_the_model_changes(tmp_path: Path) -> None:
    trainer = trainer_of(tiny_run("lm", tmp_path))
    trainer.advance()
    before = [p.clone() for p in trainer.model.parameters()]
    loss = trainer.task.loss
    trainer.task.loss = lambda rows: loss(rows) * math.nan  # type: ignore[method-assign]
    with pytest.raises(Diverged, match="the loss is nan at step 2"):
        trainer.advance()
    assert all(map(torch.equal, before, trainer.model.parameters())) and trainer.step == 1
    trainer.task.loss = loss  # type: ignore[method-assign]
    assert trainer.advance().step == 2


def test_dropout_is_drawn_by_step(tmp_path: Path) -> None:
    one = trainer_of(tiny_run("mlm", tmp_path, dropout=0.3))
    other = trainer_of(tiny_run("mlm", tmp_path, dropout=0.3))
    torch.rand(5)
    assert one.advance().loss == other.advance().loss
    plain = trainer_of(tiny_run("mlm", tmp_path))
    assert plain.advance().loss != one.advance().loss


def test_masks_hide_as_they_say() -> None:
    ids = torch.randint(0, 256, (97, 101))
    found = hide(ids, torch.Generator().manual_seed(3), mask_id=259, vocabulary=260)
    asked = found.targets != -100
    assert torch.equal(found.targets[asked], ids[asked])
    assert torch.equal(found.ids[~asked], ids[~asked])
    share = float(asked.float().mean())
    hidden = float((found.ids[asked] == 259).float().mean())
    kept = float((found.ids[asked] == ids[asked]).float().mean())
    assert (share, hidden, kept) == pytest.approx((0.15, 0.8, 0.1), abs=0.03)
    one = hide(ids[:, :1], torch.Generator().manual_seed(3), mask_id=259, vocabulary=260)
    assert bool((one.targets != -100).all())


def test_a_single_class_is_nothing_to_tell_apart() -> None:
    with pytest.raises(InvalidArgument, match="all 2 rows have the class 'a'"):
        classes_of([Row("one", "a", 1), Row("two", "a", 2)])


def test_a_line_that_names_the_columns_is_told() -> None:
    rows = [Row("text", "label", 1), *(Row(f"{i}", "ab"[i % 2], i + 2) for i in range(11))]
    with pytest.raises(InvalidArgument, match="--columns text,label"):
        classes_of(rows)
    assert classes_of(rows[1:]) == ["a", "b"]


@pytest.mark.parametrize(
    ("task", "changes", "message"),
    [
        ("lm", {"pattern": ("window(left=2, right=1)",)}, "token 0 would see token 1, which comes"),
        ("lm", {"pattern": ("causal", "full")}, "pattern full: token 0 would see token 1"),
        ("lm", {"family": "bert"}, "lm trains llama or gpt2"),
        ("lm", {"dropout": 0.1}, "a Llama has no dropout"),
        ("lm", {"files": ()}, "no files to train on"),
        ("lm", {"tokenizer": "nowhere"}, "tokenizer nowhere: it is 'bytes'"),
        ("lm", {"mechanism": "nothing"}, "no mechanism 'nothing'"),
        ("seq2seq", {"length": 7}, "line 1: .* tokens are more than the length of 7"),
    ],
)
def test_runs_that_cannot_be(
    task: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match=message):
        trainer_of(tiny_run(task, tmp_path, **changes))


def test_patterns_by_layer(tmp_path: Path) -> None:
    trainer = trainer_of(tiny_run("lm", tmp_path, pattern=("causal", "sliding_window(3)")))
    first, second = trainer.task.model.choices()["pattern"]
    assert (first, second) == (Causal(), sliding_window(3))
    trainer.advance()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 23, "heads": 2}, "width 23 is not divisible by 2 heads; for instance width 22"),
        ({"layers": 0}, "layers=0: a whole number from 1"),
        ({"length": 1}, "length=1: a whole number from 2"),
        ({"dropout": 1.0}, "dropout=1.0: a probability"),
        ({"steps": 0}, "steps=0: a whole number from 1"),
        ({"rate": math.nan}, "rate=nan: a number above 0"),
        ({"precision": "float16"}, "precision='float16'"),
        ({"validation": 1.0}, "validation=1.0: a probability"),
        ({"weight_decay": -1.0}, "weight_decay=-1.0: a number from 0 on"),
        ({"warmup": -1}, "warmup=-1: a whole number from 0"),
    ],
)
def test_values_out_of_range(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=message):
        tiny_run("lm", tmp_path, **changes)


def test_a_run_is_plain_json(tmp_path: Path) -> None:
    run = tiny_run("lm", tmp_path, pattern=("causal", "sliding_window(3)"))
    assert Run.from_json(run.as_json()) == run
