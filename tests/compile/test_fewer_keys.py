"""Fewer keys in whole graphs: at most two serve twenty lengths; tokens are refused there."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from compile.traced import LENGTHS, Counted
from eyeline import Causal, Tokens
from eyeline.layers import MultiHeadAttention
from eyeline.mechanisms import Compressed, Linformer

pytestmark = pytest.mark.slow

CONV = {"num_kv_heads": 2, "head_dim": 8}
MADE = {
    "linformer": lambda: Linformer(600, 4, **CONV),
    "conv": lambda: Compressed(4, pattern=Causal(), local=True, **CONV),
    "centroids": lambda: Compressed(4, by="centroids"),
}


@pytest.mark.parametrize("kind", MADE)
@torch.no_grad()
def test_graphs(kind: str) -> None:
    layer = MultiHeadAttention(16, 2, mechanism=MADE[kind]())
    compiled = Counted(layer)
    for length in LENGTHS:
        x = torch.randn(2, length, 16)
        torch.testing.assert_close(compiled(x), layer(x))
    assert compiled.graphs <= 2


@pytest.mark.parametrize("kind", MADE)
@torch.no_grad()
def test_tokens_need_a_break(kind: str) -> None:
    layer: nn.Module = MultiHeadAttention(16, 2, mechanism=MADE[kind]())
    x, tokens = torch.randn(2, 13, 16), Tokens.padded([13, 9])
    torch._dynamo.reset()
    words = "fewer keys are made by looking up where tokens stand"
    with pytest.raises(Exception, match=words):
        torch.compile(layer, backend="eager", fullgraph=True)(x, q_tokens=tokens)
    torch._dynamo.reset()
    broken = torch.compile(layer, backend="eager", fullgraph=False)
    torch.testing.assert_close(broken(x, q_tokens=tokens), layer(x, q_tokens=tokens))
