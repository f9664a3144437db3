"""Several modifiers in one call: what may stand together, and what a wrong one is told."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from eyeline import attention, sliding_window
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.scores import (
    ALiBi,
    Bias,
    OffsetBias,
    Product,
    ScoreMod,
    Shaw,
    Softcap,
    Step,
    T5Bias,
    TransformerXL,
    Values,
)  # fmt: skip

Q = torch.randn(1, 2, 700, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("backend", ["tiles", "reference"])
def test_what_would_see_shifted_queries_is_refused(backend: str) -> None:
    xl, other = TransformerXL(2, 8), TransformerXL(2, 8)
    for mods in ([Shaw(8, 3), xl], [xl, Shaw(8, 3)], [xl, other], [Softcap(3.0), xl]):
        with pytest.raises(NotSupported, match="TransformerXL shifts the queries"):
            attention(Q, Q, Q, sliding_window(7), score_mod=mods, backend=backend)
    for mods in ([ALiBi(2), xl], [xl, ALiBi(2), Softcap(3.0)]):
        attention(Q, Q, Q, sliding_window(7), score_mod=mods, backend=backend)


class Wrong(ScoreMod):
    """A modifier of some steps."""

    def __init__(self, *steps: Step) -> None:
        self.given = steps

    def steps(self) -> tuple[Step, ...]:
        return self.given


class Short(Wrong):
    def shifted(self, query: Tensor) -> Tensor:
        return query[:, :, :3]


BAD = {
    "vectors": (Wrong(Product(lambda d: torch.zeros(1, len(d), 3))), r"\(1, \d+, 8\) or \(2, \d"),
    "number": (Wrong(Bias(lambda d: torch.zeros(1, len(d), 8))), r"it must be \(1, \d+\)"),
    "values": (Wrong(Values(lambda d: torch.zeros(2, len(d), 5))), r"\(1, \d+, 8\)"),
    "heads": (Wrong(Bias(lambda d: torch.zeros(3, len(d)))), "2 query heads"),
    "nothing": (Wrong(Bias(lambda d: None)), "a curve gave None"),  # type: ignore[arg-type,return-value]
    "shifted": (Short(), r"Short.shifted gave torch.float32 \(1, 2, 3, 8\)"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_one_is_told_what_it_gave(name: str) -> None:
    mod, words = BAD[name]
    with pytest.raises(InvalidArgument, match=words):
        attention(Q, Q, Q, sliding_window(7), score_mod=mod, backend="tiles")


@pytest.mark.parametrize("backend", ["tiles", "reference"])
@pytest.mark.parametrize(
    "mod",
    [Shaw(8, 2), T5Bias(2, bidirectional=True), OffsetBias(2, 2)],
    ids=lambda mod: type(mod).__name__,
)
def test_gradients_of_half_parameters_are_summed_up_wide(mod: ScoreMod, backend: str) -> None:
    """Hundreds of pairs read the entry of the clipped end."""
    assert isinstance(mod, torch.nn.Module)
    found = []
    for dtype in (torch.float64, torch.bfloat16):
        mod = mod.to(torch.bfloat16).to(dtype)
        out = attention(Q.double(), Q.double(), Q.double(), score_mod=mod, backend=backend)
        found.append(torch.autograd.grad((out * Q.double()).sum(), list(mod.parameters())))
    for right, half in zip(*found, strict=True):
        assert (half - right).abs().max() < 0.01 * right.abs().max()
