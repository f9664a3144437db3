"""One step of training after another, in memory: what the loop, checkpoints and tests drive."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from eyeline.errors import CheckpointError, EyelineError
from eyeline.hashing import mixed
from eyeline.mechanisms.base import auxiliary_loss, moving_buffers
from eyeline.training.processes import ALONE, Processes
from eyeline.training.run import Course
from eyeline.training.task import Batch, Task

# The learning rate of each step: up in a line, then down half a cosine to a tenth.


FLOOR = 0.1
"""The last rate, as a share of the highest."""


def rate_at(step: int, *, steps: int, highest: float, warmup: int) -> float:
    """The rate of step 1, 2, …, steps.

    highest · step / warmup up to step = warmup; then
    highest · (f + (1 - f) · (1 + cos(π · (step - warmup) / (steps - warmup))) / 2), f = 0.1.
    Loshchilov and Hutter 2017, "SGDR" (without restarts).
    """
    if step < warmup:
        return highest * step / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return highest * (FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * min(done, 1.0))) / 2)


# AdamW: matrices decay, and all else (norms, biases, scales) does not.

BETAS = (0.9, 0.95)
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def adamw(model: nn.Module, *, weight_decay: float) -> torch.optim.AdamW:
    """The optimizer of all parameters that are trained. Loshchilov and Hutter 2019.

    All parameters are stepped in one fused operator. A fused step takes the rate from the group,
    where the loop sets it for each step.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], betas=BETAS, fused=True)


def moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What the optimizer remembers of each parameter, as ``name/exp_avg`` and so on."""
    found = {}
    for name, parameter in model.named_parameters():
        for word, value in optimizer.state.get(parameter, {}).items():
            found[f"{name}/{word}"] = value
    return found


def restore(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]
) -> None:
    """Gives the optimizer back what ``moments`` told of it.

    Raises CheckpointError for moments of a parameter that is not there or has another shape.
    """
    parameters = dict(model.named_parameters())
    for name, value in tensors.items():
        parameter, _, word = name.rpartition("/")
        known = parameters.get(parameter)
        if known is None or word not in _MOMENTS or (word != "step" and value.shape != known.shape):
            raise CheckpointError(f"the optimizer's {name} {tuple(value.shape)} fits no parameter")
        value = value if word == "step" else value.to(known.device)
        optimizer.state[known][word] = value.clone()


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
