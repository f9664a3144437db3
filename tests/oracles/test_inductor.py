"""torch's own compiler to C++: what is around attention is fused, attention is what it was."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import Tensor

from compile.traced import LENGTHS, Counted, assert_same, tensors
from eyeline import Tokens, attention, sliding_window, streaming
from eyeline.layers import MultiHeadAttention
from eyeline.scores import ALiBi, T5Bias

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler"),
]


def test_attention_among_other_operations() -> None:
    bias = T5Bias(4, bidirectional=True, max_distance=20).double()

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        pattern = streaming(5, 2)
        return attention(q * 2, k.relu(), v + 1, pattern, score_mod=(bias, ALiBi(4))).tanh()

    compiled = Counted(call, "inductor")
    for length in LENGTHS:
        x = tensors(length)
        assert_same(compiled(*x), call(*x), (*x, bias.weight))
    assert compiled.graphs <= 2


def test_positions_whose_memory_is_used_again() -> None:
    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        for gap in (1, 2, 3):
            tokens = Tokens(torch.arange(q.shape[2]) * gap - 1)
            v = v + attention(q, k, v, sliding_window(5), q_tokens=tokens, k_tokens=tokens)
        return v

    compiled = Counted(call, "inductor")
    for length in (7, 13, 67):
        x = tensors(length, heads=2, value_width=5)
        assert_same(compiled(*x), call(*x), x)


def test_a_layer() -> None:
    layer = MultiHeadAttention(12, 4, num_kv_heads=2, pattern=sliding_window(5), position=ALiBi(4))
    compiled = Counted(layer.double(), "inductor")
    for length in (7, 13, 67, 601):
        x = torch.randn(2, length, 12, dtype=torch.float64, requires_grad=True)
        assert_same(compiled(x), layer(x), (x, *layer.parameters()))
    assert compiled.graphs <= 2


def test_dropout_repeats_itself_for_one_seed() -> None:
    """Its seeds are not those of eager mode: inductor has a random generator of its own."""
    compiled = Counted(
        lambda q, k, v: attention(q, k, v, sliding_window(9), dropout_p=0.4), "inductor"
    )
    x, outs, grads = tensors(67), [], []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        outs.append(compiled(*x))
        grads.append(torch.autograd.grad(outs[-1].sum(), x))
    assert torch.equal(outs[0], outs[1])
    assert all(torch.equal(a, b) for a, b in zip(grads[0], grads[1], strict=True))
    assert not torch.equal(outs[0], outs[2])
