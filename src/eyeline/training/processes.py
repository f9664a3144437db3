"""Several processes that train one model, each on its share of every batch.

Started by ``torchrun``, which tells each process its number. The gradient is that of the whole
batch: each process divides the sum of its losses by the targets of all, and gradients are added.
What mechanisms ask for beside it is a mean, of which each has its own: rows count alike there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, distributed, nn

from eyeline.errors import InvalidArgument


@final
@dataclass(frozen=True)
class Processes:
    """Which of them this is, 0 … count - 1. The first writes and prints."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def share(self, rows: int) -> slice:
        """The rows of a batch that are this process's own."""
        return slice(rows * self.rank // self.count, rows * (self.rank + 1) // self.count)

    def part(self, rows: int) -> float:
        """How much of a batch that is, from 0 to 1: 1 in all processes together."""
        return len(range(rows)[self.share(rows)]) / rows

    def total(self, model: nn.Module, numbers: Sequence[float]) -> list[float]:
        """Adds up the gradients of all processes, in place, and the numbers given along.

        Gradients travel as one tensor. Parameters that a process has no gradient of count as 0.
        """
        if self.count == 1:
            return list(numbers)
        parameters = [p for p in model.parameters() if p.requires_grad]
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        grads: list[Tensor] = [p.grad for p in parameters if p.grad is not None]
        flat = torch.cat([g.detach().float().reshape(-1) for g in grads])
        distributed.all_reduce(flat)
        counted = torch.tensor(numbers, dtype=torch.float64)
        distributed.all_reduce(counted)
        start = 0
        for grad in grads:
            grad.copy_(flat[start : start + grad.numel()].view_as(grad))
            start += grad.numel()
        return [float(x) for x in counted]

    def agree(self, buffers: Sequence[Tensor]) -> None:
        """All take the last process's buffers, in place: it has rows whenever any process has."""
        if self.count > 1:
            for each in buffers:
                distributed.broadcast(each, self.count - 1)

    def wait(self) -> None:
        """Until all processes are here."""
        if self.count > 1:
            distributed.barrier()


ALONE = Processes()


def joined() -> Processes:
    """The processes that ``torchrun`` started, or this one alone. Joins them if that is due."""
    if "WORLD_SIZE" not in os.environ or int(os.environ["WORLD_SIZE"]) == 1:
        return ALONE
    if not distributed.is_available():
        raise InvalidArgument("several processes need a torch that has torch.distributed")
    if not distributed.is_initialized():
        distributed.init_process_group("gloo")
    return Processes(distributed.get_rank(), distributed.get_world_size())


def leave() -> None:
    """Ends the connection, if there is one."""
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
