"""Feed-forward layers and norms against their formulas and torch's own."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from eyeline.layers import FeedForward, GatedFeedForward, RMSNorm
from layers.dense import drawn, random

FORMULAS = {
    "relu": lambda x: x.clamp(min=0),
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: (
        0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
    "silu": lambda x: x / (1 + torch.exp(-x)),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", FORMULAS)
def test_feed_forward(activation: str, bias: bool) -> None:
    ours = FeedForward(7, 13, activation=activation, bias=bias).double()  # type: ignore[arg-type]
    drawn(ours)
    x = random(2, 5, 7)
    shift = (ours.up.bias, ours.down.bias) if bias else (0.0, 0.0)
    inner = FORMULAS[activation](x @ ours.up.weight.T + shift[0])
    torch.testing.assert_close(ours(x), inner @ ours.down.weight.T + shift[1])
    assert sum(p.numel() for p in ours.parameters()) == 2 * 7 * 13 + bias * (7 + 13)


@pytest.mark.parametrize("activation", FORMULAS)
def test_gated_feed_forward(activation: str) -> None:
    ours = GatedFeedForward(7, 13, activation=activation).double()  # type: ignore[arg-type]
    drawn(ours)
    x = random(2, 5, 7).requires_grad_()
    gate, up = (x @ ours.gate_up.weight.T).split(13, -1)
    want = (FORMULAS[activation](gate) * up) @ ours.down.weight.T
    torch.testing.assert_close(ours(x), want)
    grads = [
        torch.autograd.grad(y.square().sum(), (x, ours.gate_up.weight)) for y in (ours(x), want)
    ]
    for ours_, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours_, theirs)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), want)


def test_dropout_is_inside_and_only_in_training() -> None:
    ours, x = FeedForward(7, 999, dropout=0.5), torch.randn(1, 7)
    nn.init.zeros_(ours.down.bias)
    assert torch.equal(ours.eval()(x), ours(x))
    ours.train()
    torch.manual_seed(0)
    mean = torch.stack([ours(x) for _ in range(300)]).mean(0)
    assert (mean - ours.eval()(x)).abs().max() < 0.1 * (
        ours.train()(x) - ours.eval()(x)
    ).abs().max() + 0.05


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (2, 5)])
def test_rms_norm(shape: tuple[int, ...]) -> None:
    ours, theirs = RMSNorm(7, eps=1e-3).double(), nn.RMSNorm(7, eps=1e-3).double()
    drawn(ours)
    theirs.load_state_dict(ours.state_dict())
    x = random(*shape, 7)
    torch.testing.assert_close(ours(x), theirs(x))
    want = x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt() * ours.weight
    torch.testing.assert_close(ours(x), want)


def test_layer_norm_is_over_each_tokens_own_features() -> None:
    def norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        variance = (x - mean).square().mean(-1, keepdim=True)
        return gamma * (x - mean) / (variance + eps).sqrt() + beta

    theirs, x = nn.LayerNorm(7).double(), random(2, 5, 7)
    drawn(theirs)
    torch.testing.assert_close(theirs(x), norm(x, theirs.weight, theirs.bias, theirs.eps))
