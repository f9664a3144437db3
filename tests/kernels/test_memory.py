"""No kernel but the dense ones ever holds n² elements, forward or backward (acceptance row 12)."""

from __future__ import annotations

import pytest
import torch

from eyeline import (
    Causal,
    Chunks,
    Dilated,
    Full,
    Grid,
    Pattern,
    Predicate,
    Sinks,
    Strided,
    Tokens,
    Window,
    attention,
    longformer,
    sliding_window,
    sparse_transformer,
    streaming,
)  # fmt: skip
from eyeline.testing.kernel import largest_tensor

LENGTH = 4099
PACKED = Tokens.packed([1000, 8, 1, 2048, 90], length=LENGTH)


@pytest.mark.parametrize(
    "pattern",
    [
        sliding_window(256), streaming(256, 4), Window(100, 100), Causal(), Full(), Chunks(300),
        Causal() | Sinks(40), ~Window(50, 50),
        Causal() & Strided(64), sparse_transformer(64), sparse_transformer(64, "fixed"),
        Dilated(16, 20, 20), longformer(50, [3, 777, 4000]), Grid(4099, 1, 30),
        Predicate(lambda b, h, q, k: (q - k) % 7 == 0, per_batch=False, per_head=False),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("fused", [True, False])
def test_no_n_squared(pattern: Pattern, fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not fused:
        monkeypatch.setattr("eyeline.kernels.flash.serves", lambda query, value: False)
    q, k, v = (torch.randn(1, 1, LENGTH, 4, requires_grad=True) for _ in range(3))

    def run() -> None:
        out = attention(q, k, v, pattern, q_tokens=PACKED, k_tokens=PACKED, backend="tiles")
        out.sum().backward()

    assert largest_tensor(run) < LENGTH**2 / 4
