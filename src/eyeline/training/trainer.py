"""One step of training after another, in memory: what the loop, checkpoints and tests drive."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import nn

from eyeline.errors import EyelineError
from eyeline.hashing import mixed
from eyeline.mechanisms.auxiliary import auxiliary_loss, moving_buffers
from eyeline.training.optimizer import adamw
from eyeline.training.processes import ALONE, Processes
from eyeline.training.run import Course
from eyeline.training.schedule import rate_at
from eyeline.training.task import Batch, Task


class Diverged(EyelineError):
    """The loss or the gradients became NaN or infinite."""


@dataclass(frozen=True)
class Stepped:
    """A step: loss, the mean over its targets in nats; norm of the gradients before clipping.

    stop: a process asks to stop after this step. auxiliary: what mechanisms ask for beside the
    loss, such as k-means routing, and is minimised with it; 0 where none does.
    """

    step: int
    loss: float
    rate: float
    norm: float
    tokens: int
    stop: bool
    auxiliary: float = 0.0


@final
class Trainer:
    """A model on its way: ``step`` says how many are done, ``advance`` does the next.

    All that a step depends on is model, optimizer, and step: batches and dropout are drawn from
    (seed, step), so state that is restored goes on as if nothing had happened.
    """

    def __init__(self, task: Task[Any], course: Course, processes: Processes = ALONE) -> None:
        self.task, self.course, self.processes = task, course, processes
        self.model: nn.Module = task.model
        self.optimizer = adamw(self.model, weight_decay=course.weight_decay)
        self.step = 0
        self._device = next(self.model.parameters()).device.type

    @property
    def done(self) -> bool:
        """Whether all steps of the course are done."""
        return self.step >= self.course.steps

    def advance(self, *, stop: bool = False) -> Stepped:
        """Does the next step. stop: this process wants to stop; all learn of it together.

        Raises Diverged, with the step, before the model is changed by what is not finite.
        """
        step, course = self.step + 1, self.course
        self.model.train()
        torch.manual_seed(mixed(course.seed, "dropout", step, self.processes.rank))
        batch = self.task.batch(step, self.processes)
        self.optimizer.zero_grad()
        losses = self._losses(batch)
        total, beside, asked = self.processes.total(self.model, (*losses, float(stop)))
        if not math.isfinite(total + beside):
            raise Diverged(f"the loss is {total + beside} at step {step}")
        self.processes.agree(moving_buffers(self.model))
        norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), course.clip))
        if not math.isfinite(norm):
            raise Diverged(f"the gradients are {norm} at step {step}")
        rate = rate_at(step, steps=course.steps, highest=course.rate, warmup=course.warmup)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.step = step
        return Stepped(step, total, rate, norm, batch.tokens, asked > 0, beside)

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """The task's measures in eval mode."""
        self.model.eval()
        with self._precision():
            return self.task.measure()

    def _losses(self, batch: Batch[Any]) -> tuple[float, float]:
        """This process's part of the loss and of the auxiliary one; their gradients are added."""
        if batch.rows is None:
            return 0.0, 0.0
        with self._precision():
            loss = self.task.loss(batch.rows) / batch.targets
            beside = auxiliary_loss(self.model)
        total, extra = float(loss.detach()), 0.0
        if beside is not None:  # a mean over this process's rows
            beside = beside * batch.part
            loss, extra = loss + beside, float(beside.detach())
        if math.isfinite(total + extra) or self.processes.count > 1:  # all must meet in the sum
            loss.backward()
        return total, extra

    def _precision(self) -> AbstractContextManager[object]:
        if self.course.precision == "float32":
            return nullcontext()
        return torch.autocast(self._device, torch.bfloat16)
