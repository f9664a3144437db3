"""At most two graphs serve twenty lengths, forward and backward, and none of them breaks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from compile.traced import LENGTHS, Counted, assert_same, tensors
from eyeline import (
    Causal,
    Pattern,
    Sinks,
    Tokens,
    Window,
    attention,
    sliding_window,
    streaming,
)  # fmt: skip
from eyeline.layers import BlockShape, MultiHeadAttention
from eyeline.mechanisms import Exact
from eyeline.scores import ALiBi, T5Bias


@pytest.mark.parametrize("pattern", [Causal(), sliding_window(5)], ids=str)
def test_training(pattern: Pattern) -> None:
    compiled = Counted(lambda q, k, v: attention(q, k, v, pattern), "aot_eager")
    for length in LENGTHS:
        x = tensors(length)
        assert_same(compiled(*x), attention(*x, pattern, backend="reference"), x)
    assert compiled.graphs <= 2


@torch.no_grad()
def test_inference() -> None:
    compiled = Counted(lambda q, k, v: attention(q, k, v, streaming(5, 2)))
    for length in LENGTHS:
        x = tensors(length)
        assert_same(compiled(*x), attention(*x, streaming(5, 2), backend="reference"))
    assert compiled.graphs <= 2


@torch.no_grad()
def test_fewer_queries_than_keys() -> None:
    compiled = Counted(lambda q, k, v: attention(q, k, v, streaming(5, 2)))
    for length in LENGTHS:
        x = tensors(length - 5, length)
        assert_same(compiled(*x), attention(*x, streaming(5, 2), backend="reference"))
    assert compiled.graphs <= 2


def _padded(length: int) -> Tokens:
    return Tokens.padded([length, length - 3], length=length)


def _packed(length: int) -> Tokens:
    return Tokens.packed([length - 5, 3], length=length)


@pytest.mark.parametrize("tokens", [_padded, _packed])
def test_tokens_and_score_modifiers(tokens: Callable[[int], Tokens]) -> None:
    trained = T5Bias(4, bidirectional=True, max_distance=20).double()
    score_mod = (ALiBi(4), trained)
    pattern = Window(5, 3) | Sinks(2)

    def call(q: Tensor, k: Tensor, v: Tensor, t: Tokens, backend: str = "auto") -> Tensor:
        return attention(
            q, k, v, pattern, score_mod=score_mod, q_tokens=t, k_tokens=t, backend=backend
        )

    compiled = Counted(call)
    for length in LENGTHS:
        x, t = tensors(length), tokens(length)
        assert_same(compiled(*x, t), call(*x, t, "reference"), (*x, trained.weight))
    assert compiled.graphs <= 2


@torch.no_grad()
def test_masks() -> None:
    compiled = Counted(lambda q, k, v, mask: attention(q, k, v, mask))
    for length in LENGTHS:
        x, mask = tensors(length), torch.rand(length, length) < 0.5
        assert_same(compiled(*x, mask), attention(*x, mask, backend="reference"))
    assert compiled.graphs <= 2


class Encoder(nn.Module):
    """Attention layers of several kinds, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first = MultiHeadAttention(
            12, 4, num_kv_heads=2, pattern=sliding_window(5), position=ALiBi(4)
        )
        self.second = Exact(
            Causal() & Sinks(3), score_mod=T5Bias(4, bidirectional=False, max_distance=30)
        )
        self.stack = BlockShape(12, 4, 20).stack(2, [Causal(), Window(4, 0)])

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.first(x)
        heads = x.unflatten(-1, (4, 3)).transpose(1, 2)
        x = x + self.second(heads, heads, heads).transpose(1, 2).flatten(2)
        return self.stack(x)


def test_a_model() -> None:
    model = Encoder().double()
    compiled = Counted(model)
    for length in LENGTHS:
        x = torch.randn(2, length, 12, dtype=torch.float64, requires_grad=True)
        assert_same(compiled(x), model(x), (x, *model.parameters()))
    assert compiled.graphs <= 2
