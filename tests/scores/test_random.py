"""Random expressions, tokens, modifiers and dropout against the definition, in float64."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from eyeline.budgets import budgets
from eyeline.kernels import KERNELS
from eyeline.kernels.request import Request
from eyeline.patterns import Pattern
from eyeline.scores import (
    ALiBi,
    Dropout,
    OffsetBias,
    OffsetFactor,
    ScoreMod,
    Shaw,
    Softcap,
    T5Bias,
    TransformerXL,
)  # fmt: skip
from eyeline.testing.cases import trained
from eyeline.testing.kernel import parity_of
from eyeline.tokens import Tokens
from strategies import patterns, token_pairs

HEADS, WIDTH, VALUES = 4, 6, 5
MODS: list[ScoreMod] = [
    ALiBi(HEADS), Softcap(1.5), trained(OffsetBias(HEADS, 9)), trained(OffsetFactor(HEADS, 2)),
    trained(T5Bias(HEADS, num_buckets=8, max_distance=30, bidirectional=True)),
    trained(Shaw(WIDTH, 4, value_dim=VALUES)),
    trained(Shaw(WIDTH, 90, value_dim=0, num_heads=HEADS)),
    trained(TransformerXL(HEADS, WIDTH)),
]  # fmt: skip


@settings(max_examples=40)
@given(
    patterns,
    token_pairs(),
    st.lists(st.sampled_from(MODS), min_size=1, max_size=3),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([VALUES, WIDTH]),
    st.sampled_from([1_000, 30_000, 4 << 20]),
)
def test_parity(
    pattern: Pattern,
    tokens: tuple[Tokens, Tokens],
    mods: list[ScoreMod],
    dropout_p: float,
    key_heads: int,
    value_width: int,
    budget: int,
) -> None:
    if any(isinstance(mod, Shaw) for mod in mods):
        value_width = VALUES
    generator = torch.Generator().manual_seed(1)
    shapes = [
        (2, HEADS, tokens[0].length, WIDTH),
        (2, key_heads, tokens[1].length, WIDTH),
        (2, key_heads, tokens[1].length, value_width),
    ]
    q, k, v = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    for mod in mods:
        q = mod.shifted(q)
    steps = tuple(step for mod in mods for step in mod.steps())
    if dropout_p:
        steps += (Dropout(dropout_p, 3),)
    tensors = [x.detach().requires_grad_() for x in (q, k, v)]
    request = Request(*tensors, pattern, *tokens, 0.4, steps=steps)
    modules = [mod for mod in dict.fromkeys(mods) if isinstance(mod, nn.Module)]
    learned = [x for module in modules for x in module.parameters()]
    usual = budgets.piece
    budgets.piece = budget
    try:
        for kernel in KERNELS:
            if kernel.NAME != "flex" and kernel.refusal(request) is None:
                parity_of(kernel, request, learned)
    finally:
        budgets.piece = usual
