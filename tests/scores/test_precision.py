"""In half types biases are not rounded to them: far keys keep their order, nothing overflows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from eyeline import Causal, Sinks, Window, attention
from eyeline.scores import ALiBi, OffsetBias, ScoreMod, Shaw, T5Bias, TransformerXL
from eyeline.testing.cases import trained

FAR = Causal() & Sinks(5)
"""Where keys stand far away, biases are large, and only their differences count."""


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("queries", "backend"), [(1, "decode"), (7, "decode"), (7, "sdpa"),
                                                  (1, "tiles"), (7, "tiles")])  # fmt: skip
def test_large_biases(dtype: torch.dtype, queries: int, backend: str) -> None:
    torch.manual_seed(0)
    n = 30_011 if dtype == torch.float16 else 701
    q = torch.randn(1, 2, queries, 8, dtype=torch.float64)
    k, v = torch.randn(2, 1, 1, n, 8, dtype=torch.float64).unbind()
    level = trained(OffsetBias(2, 3))
    with torch.no_grad():
        level.weight += 300.0
    given: list[tuple[ScoreMod, object]] = [
        (ALiBi(2, slopes=(3.0, 0.5)), FAR),
        (level, Window(9, 2)),
    ]
    for mod, pattern in given:
        half = [x.to(dtype) for x in (q, k, v)]
        right = attention(*(x.double() for x in half), pattern, score_mod=mod, backend="reference")
        found = attention(*half, pattern, score_mod=mod, backend=backend)
        allowed = (6 * torch.finfo(dtype).eps + 1e-4) * right.abs().max().clamp(min=1)
        assert (found.double() - right).abs().max() < allowed


@pytest.mark.parametrize("mod", [T5Bias(2, bidirectional=False), Shaw(8, 5), TransformerXL(2, 8)])
def test_autocast_casts_what_is_given_and_no_table(mod: nn.Module) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 41, 8, requires_grad=True) for _ in range(3))
    asked = {"score_mod": mod, "backend": "tiles"}
    with torch.autocast("cpu", torch.bfloat16):
        out = attention(q, k, v, Causal(), **asked)  # type: ignore[arg-type]
    cast = (x.to(torch.bfloat16) for x in (q, k, v))
    assert out.dtype == torch.bfloat16 and torch.equal(out, attention(*cast, Causal(), **asked))  # type: ignore[arg-type]
    out.sum().backward()
    assert all(x.grad is not None and x.grad.dtype == torch.float32 for x in mod.parameters())
