"""Learned biases and terms cost memory in proportion to the length (acceptance row 12)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from eyeline import Causal, Pattern, Strided, attention, longformer, streaming
from eyeline.scores import ALiBi, OffsetFactor, ScoreMod, Shaw, Softcap, T5Bias, TransformerXL
from eyeline.testing.kernel import largest_tensor

LENGTH = 20_011
LONG: list[ScoreMod] = [T5Bias(2, bidirectional=False), Shaw(4, 64)]
SHORT: list[ScoreMod] = [ALiBi(2), OffsetFactor(2, 30), TransformerXL(2, 4), Softcap(5.0)]


def most_elements(mod: ScoreMod, pattern: Pattern, length: int) -> int:
    """The largest tensor of a step of training."""
    q, k, v = (torch.randn(1, heads, length, 4, requires_grad=True) for heads in (2, 1, 1))

    def run() -> None:
        out = attention(q, k, v, pattern, score_mod=mod, dropout_p=0.1, backend="tiles")
        out.sum().backward()

    most = largest_tensor(run)
    assert q.grad is not None and q.grad.isfinite().all()
    if isinstance(mod, nn.Module):
        assert all(x.grad is not None and x.grad.any() for x in mod.parameters())
    return most


@pytest.mark.parametrize("mod", LONG, ids=lambda mod: type(mod).__name__)
def test_no_n_squared(mod: ScoreMod) -> None:
    assert most_elements(mod, streaming(64, 4), LENGTH) < LENGTH**2 / 200


@pytest.mark.parametrize("mod", LONG + SHORT, ids=lambda mod: type(mod).__name__)
@pytest.mark.parametrize(
    "pattern",
    [streaming(64, 4), Causal() & Strided(61), longformer(20, [0, 900])],
    ids=str,
)
def test_none_where_parts_are_tall_wide_or_reordered(mod: ScoreMod, pattern: Pattern) -> None:
    length = 3001
    assert most_elements(mod, pattern, length) < length**2 / 4
