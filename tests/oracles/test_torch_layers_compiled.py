"""A converted model inside torch.compile: no graph break, at most two graphs over many lengths."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from eyeline import Window
from eyeline.layers.conversion import convert

pytestmark = pytest.mark.slow

LENGTHS = (40, 41, 57, 60, 71)


def converted() -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 23, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 1)
    convert(model, Window(5, 5))
    return model


def masks(kind: str, length: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(length)
    random = torch.rand(length, length, generator=generator) < 0.3
    random.fill_diagonal_(False)
    pads = torch.arange(length) >= torch.tensor([[length], [length - 9]])
    kinds: dict[str, dict[str, Any]] = {
        "none": {},
        "pads": {"src_key_padding_mask": pads},
        "causal": {"is_causal": True, "src_key_padding_mask": pads},
        "mask": {"mask": random, "is_causal": False},
        "rank 3": {"mask": random.repeat(4, 1, 1), "is_causal": False},
    }
    return kinds[kind]


@pytest.mark.parametrize("kind", ["none", "pads", "causal", "mask", "rank 3"])
def test_graphs_and_gradients(kind: str) -> None:
    torch._dynamo.reset()
    model = converted()
    counter = CompileCounterWithBackend("aot_eager")  # type: ignore[no-untyped-call]
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for length in LENGTHS:
        x = torch.randn(2, length, 16, generator=torch.Generator().manual_seed(1))
        found: list[list[Tensor]] = []
        for run in (model, compiled):
            leaf = x.clone().requires_grad_()
            out = run(leaf, **masks(kind, length))
            leaves = [leaf, *model.parameters()]
            found.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
        for eager, ours in zip(*found, strict=True):
            torch.testing.assert_close(ours, eager, atol=1e-4, rtol=1e-4)
    assert counter.frame_count <= 2


def test_numbers_that_are_no_mask_are_refused_when_it_runs() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(converted(), backend="aot_eager", fullgraph=True)
    with pytest.raises(RuntimeError, match="attn_mask holds numbers other than 0 and -inf"):
        compiled(torch.zeros(2, 40, 16), mask=torch.ones(40, 40), is_causal=False)
