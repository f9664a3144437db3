"""The part of a block that works on each token alone: norms and feed-forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from eyeline.budgets import budgets
from eyeline.checks import check_sizes, probability
from eyeline.errors import InvalidArgument

# Work on each token alone, done some tokens at a time.


def by_rows(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """function(x) for a function that maps each row of x (…, width) without the others.

    The memory between its steps is that of 1,024 rows, and a long text is read faster for it.
    """
    rows = x.flatten(0, -2)
    if rows.shape[0] <= budgets.fed_rows:
        return function(x)
    out = torch.cat([function(part) for part in rows.split(budgets.fed_rows)])
    return out.view(*x.shape[:-1], -1)


# Norms that torch lacks, or has in many small steps.


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / √(mean(x²) + ε) ⊙ weight over the last dimension; float32 inside. Zhang 2019.

    x: (…, width); weight: (width,).

    torch's ``rms_norm`` is seven operators on a CPU, its ``layer_norm`` one. The vector (x, -x)
    has mean 0 and variance mean(x²), so the first half of its layer norm is the same thing, and
    for one row, as in writing, it takes half the time.
    """
    width = x.shape[-1]
    if x.numel() != width or x.device.type != "cpu":
        return functional.rms_norm(x, (width,), weight, eps)
    both = functional.layer_norm(torch.cat((x, -x), -1), (2 * width,), eps=eps)
    return both[..., :width] * weight


@final
class RMSNorm(nn.Module):
    """x / √(mean(x²) + ε) ⊙ weight over the last dimension, (…, width): ``rms_norm`` as a module.

    weight starts as 1. Zhang and Sennrich 2019. nn.LayerNorm is torch's own, and used as it is.
    """

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        check_sizes(width=width)
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps:g}"


# The part of a block that works on each token alone.

Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]
"""relu(x) = max(x, 0); gelu(x) = x Φ(x); gelu_tanh, its approximation by tanh; silu(x) = x σ(x)."""

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
}


@final
class FeedForward(nn.Module):
    """W_down f(W_up x + b_up) + b_down: x (…, width) → (…, hidden) → (…, width).

    activation: f, by name. dropout: of f's results, while training. Vaswani et al. 2017 (relu);
    BERT ("gelu"), GPT-2 ("gelu_tanh").

    Raises InvalidArgument for sizes below 1, another activation, and a dropout that is not a
    probability below 1.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        activation: Activation = "relu",
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_sizes(width=width, hidden=hidden)
        self.width = width
        self.activation = _known(activation)
        self.dropout = probability("dropout", dropout)
        self.up = nn.Linear(width, hidden, bias=bias)
        self.down = nn.Linear(hidden, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        inner = ACTIVATIONS[self.activation](self.up(x))
        if self.dropout and self.training:
            inner = functional.dropout(inner, self.dropout)
        out: Tensor = self.down(inner)
        return out

    def extra_repr(self) -> str:
        return f"activation={self.activation!r}, dropout={self.dropout:g}"


@final
class GatedFeedForward(nn.Module):
    """W_down (f(W_gate x) ⊙ W_up x), without biases.

    x: (…, width) → (…, width). W_gate and W_up are the two halves of one projection, so that a
    single row reads one long weight. activation: f, by name; "silu" as in Llama (SwiGLU), "gelu"
    is GEGLU. Shazeer 2020, "GLU Variants Improve Transformer".

    Raises InvalidArgument for sizes below 1 and another activation.
    """

    def __init__(self, width: int, hidden: int, *, activation: Activation = "silu") -> None:
        super().__init__()
        check_sizes(width=width, hidden=hidden)
        self.width = width
        self.activation = _known(activation)
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        inner = ACTIVATIONS[self.activation](gate)
        # In place only where no derivative will ask for what relu gave.
        inner = inner * up if torch.is_grad_enabled() else inner.mul_(up)
        down: Tensor = self.down(inner)
        return down

    def extra_repr(self) -> str:
        return f"activation={self.activation!r}"


def _known(activation: str) -> str:
    if activation not in ACTIVATIONS:
        raise InvalidArgument(f"activation={activation!r}: it is one of {', '.join(ACTIVATIONS)}")
    return activation
