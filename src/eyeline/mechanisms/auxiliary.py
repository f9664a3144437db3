"""Losses that mechanisms ask for beside the task's own, and what they learn without gradients."""

from __future__ import annotations

from torch import Tensor, nn


def auxiliary_loss(module: nn.Module) -> Tensor | None:
    """The sum of ``auxiliary`` over a module and all in it; None if nothing has one.

    A mechanism sets it in each forward pass of training, to be added to the loss of that pass; a
    module that is called twice has that of the last call.
    """
    losses = [x for x in (getattr(m, "auxiliary", None) for m in module.modules()) if x is not None]
    return sum(losses[1:], losses[0]) if losses else None


def moving_buffers(module: nn.Module) -> list[Tensor]:
    """Buffers that forward passes change in training: those that modules name in ``moving``."""
    return [
        getattr(each, name) for each in module.modules() for name in getattr(each, "moving", ())
    ]
