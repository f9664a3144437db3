"""What autograd and torch.compile are told: one derivative only, or kept out of graphs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from eyeline.errors import NotSupported

# Gradients that say so when they are differentiated again.
#
# torch's ``once_differentiable`` cuts the graph: ``torch.autograd.grad`` then finds no way to the
# inputs and leaves the second derivative out without a word, where ``backward`` would refuse.


def only_once(what: str, gradients: tuple[Any, ...], *inputs: Tensor | None) -> tuple[Any, ...]:
    """The same gradients. Differentiating them again by an input raises NotSupported.

    what: the words that begin the message; inputs: all that the gradients depend on.
    """
    of = [x for x in inputs if x is not None and x.requires_grad]
    if not torch.is_grad_enabled() or not of:
        return gradients
    found = [x for x in gradients if isinstance(x, Tensor)]
    marked = iter(_Once.apply(what, len(of), *of, *found))  # type: ignore[no-untyped-call]
    return tuple(next(marked) if isinstance(x, Tensor) else x for x in gradients)


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, what: str, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.what = what
        return tuple(x.view_as(x) for x in tensors[count:])

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Any, ...]:
        raise NotSupported(
            f"{ctx.what} has first derivatives only; the reference has second ones, for short "
            'inputs: attention(…, backend="reference"), attention_weights(…)'
        )


# What reads numbers to decide what to do, kept out of graphs.

Result = TypeVar("Result")


def eager(run: Callable[[], Result]) -> Result:
    """What ``run`` returns. torch.compile breaks its graph here; with fullgraph=True it refuses."""
    if torch.compiler.is_compiling() or "torch._dynamo" in sys.modules:
        run = torch.compiler.disable(run)
    return run()
