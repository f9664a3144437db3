"""What is said of the future agrees with the pairs there are."""

from __future__ import annotations

import torch
from hypothesis import given

from eyeline import (
    Causal,
    Explicit,
    Full,
    Pattern,
    PerHead,
    Sinks,
    Tokens,
    Window,
    dense_mask,
    streaming,
)
from eyeline.patterns.ahead import never_looks_ahead
from strategies import patterns


@given(patterns)
def test_true_is_never_wrong(pattern: Pattern) -> None:
    if never_looks_ahead(pattern):
        tokens = Tokens.arange(0, 23)
        assert not dense_mask(pattern, q_tokens=tokens, k_tokens=tokens).triu(1).any()


def test_what_is_known() -> None:
    assert never_looks_ahead(streaming(16, 2))
    assert never_looks_ahead(PerHead([Causal(), Window(3, 0)]))
    assert never_looks_ahead(Causal() & ~Window(0, 0))
    for pattern in (
        Full(), Window(3, 1), ~Causal(), Causal() | Sinks(2), PerHead([Causal(), Full()]),
        Explicit(torch.ones(3, 3).tril().bool()),
    ):  # fmt: skip
        assert not never_looks_ahead(pattern)
