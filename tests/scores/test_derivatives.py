"""Where definitions are differentiated: first and second derivatives, forward mode, vmap."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from eyeline import Causal, Tokens, attention
from eyeline.scores import (
    ALiBi,
    OffsetBias,
    OffsetFactor,
    ScoreMod,
    Shaw,
    Softcap,
    T5Bias,
    TransformerXL,
)  # fmt: skip
from eyeline.testing.cases import trained

TOKENS = Tokens.listed([-1, 0, 1, 3, 4])
MODS: list[ScoreMod] = [
    ALiBi(2), Softcap(1.0), trained(T5Bias(2, num_buckets=4, max_distance=3, bidirectional=False)),
    trained(OffsetBias(2, 2)), trained(OffsetFactor(2, 2)), trained(Shaw(2, 2)),
    trained(TransformerXL(2, 2)),
]  # fmt: skip


def inputs(mod: ScoreMod) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    shapes = ((1, 2, 5, 2), (1, 1, 5, 2), (1, 1, 5, 2))
    drawn = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    learned = mod.parameters() if isinstance(mod, nn.Module) else ()
    return (*drawn, *learned)


@pytest.mark.parametrize("mod", MODS, ids=lambda mod: type(mod).__name__)
def test_derivatives(mod: ScoreMod) -> None:
    given = inputs(mod)

    def run(backend: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        asked = {"score_mod": [mod, Softcap(2.0)], "q_tokens": TOKENS, "k_tokens": TOKENS}
        return attention(q, k, v, Causal(), backend=backend, **asked)  # type: ignore[arg-type]

    def reference(q: Tensor, k: Tensor, v: Tensor, *learned: Tensor) -> Tensor:
        return run("reference", q, k, v)

    def tiles(q: Tensor, k: Tensor, v: Tensor, *learned: Tensor) -> Tensor:
        return run("tiles", q, k, v)

    assert gradcheck(tiles, given)
    assert gradcheck(reference, given[:3], check_forward_ad=True)
    assert gradgradcheck(reference, given)
    found = torch.vmap(lambda q: run("reference", q, *given[1:3]))(torch.stack([given[0]] * 3))
    torch.testing.assert_close(found[1], run("reference", *given[:3]))
