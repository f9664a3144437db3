"""Random expressions on random tokens, forward and backward, against the reference in float64."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eyeline.exact.dispatch import Kernel
from eyeline.kernels import KERNELS
from eyeline.kernels.request import Request
from eyeline.patterns import Pattern
from eyeline.testing.kernel import parity_of
from eyeline.tokens import Tokens
from strategies import patterns, token_pairs


@settings(max_examples=120)
@given(
    patterns,
    token_pairs(),
    st.sampled_from(KERNELS),
    st.sampled_from([(1, 1), (4, 2), (3, 1)]),
    st.sampled_from([(8, 8), (3, 5), (1, 1)]),
    st.integers(0, 10**6),
)
def test_parity(
    pattern: Pattern,
    tokens: tuple[Tokens, Tokens],
    kernel: Kernel,
    heads: tuple[int, int],
    widths: tuple[int, int],
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    shapes = [
        (2, heads[0], tokens[0].length, widths[0]),
        (2, heads[1], tokens[1].length, widths[0]),
        (2, heads[1], tokens[1].length, widths[1]),
    ]
    tensors = [
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in shapes
    ]
    request = Request(*tensors, pattern, *tokens, 0.4)
    if kernel.refusal(request) is None:
        parity_of(kernel, request)
