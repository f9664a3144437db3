"""Score modifiers and dropout inside torch.compile: what they compute, and their gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from compile.traced import Counted, assert_same, tensors
from eyeline import Causal, Tokens, Window, attention, sliding_window
from eyeline.errors import NotSupported
from eyeline.scores import (
    ALiBi,
    OffsetBias,
    OffsetFactor,
    ScoreMod,
    Shaw,
    Softcap,
    T5Bias,
    TransformerXL,
)

Made = ScoreMod | tuple[ScoreMod, ...]
SCORE_MODS: dict[str, Callable[[], Made]] = {
    "alibi": lambda: ALiBi(4),
    "t5": lambda: T5Bias(4, bidirectional=True, max_distance=20),
    "t5, one direction": lambda: T5Bias(4, bidirectional=False, max_distance=20),
    "softcap": lambda: Softcap(2.0),
    "shaw": lambda: Shaw(6, 9, value_dim=3),
    "transformer-xl": lambda: TransformerXL(4, 6),
    "offset bias": lambda: OffsetBias(4, 9),
    "offset factor": lambda: OffsetFactor(4, 9),
    "several": lambda: (OffsetFactor(4, 5), ALiBi(4), Softcap(3.0), OffsetBias(4, 200)),
}


def parameters(made: Made) -> list[nn.Parameter]:
    each = made if isinstance(made, tuple) else (made,)
    return [p for mod in each if isinstance(mod, nn.Module) for p in mod.double().parameters()]


@pytest.mark.parametrize(
    ("name", "padded"),
    [*((name, False) for name in SCORE_MODS), ("alibi", True), ("shaw", True), ("several", True)],
)
def test_parity(name: str, padded: bool) -> None:
    made = SCORE_MODS[name]()
    tokens = Tokens.padded([53, 67]) if padded else None

    def call(q: Tensor, k: Tensor, v: Tensor, backend: str = "auto") -> Tensor:
        return attention(
            q, k, v, Window(30, 7), score_mod=made,
            q_tokens=tokens, k_tokens=tokens, backend=backend,
        )  # fmt: skip

    x, trained = tensors(67, width=6), parameters(made)
    compiled = Counted(call)
    assert_same(compiled(*x), call(*x, "reference"), (*x, *trained))
    if padded:
        with torch.no_grad():
            assert_same(compiled(*x), call(*x, "reference"))


def test_fewer_queries_than_keys() -> None:
    for shape in ((5, 67), (1, 67)):
        x = tensors(*shape)
        compiled = Counted(lambda q, k, v: attention(q, k, v, Causal(), score_mod=ALiBi(4)))
        assert_same(compiled(*x), attention(*x, Causal(), score_mod=ALiBi(4)), x)


def test_numbers_that_change_from_call_to_call() -> None:
    def call(q: Tensor, k: Tensor, v: Tensor, number: float) -> Tensor:
        pattern = sliding_window(9)
        return attention(q, k, v, pattern, score_mod=Softcap(number), scale=number / 3)

    compiled, x = Counted(call), tensors(19)
    for number in (0.5, 1.5, 2.0, 0.7):
        assert_same(compiled(*x, number), call(*x, number))


def test_a_reach_that_changes_from_call_to_call() -> None:
    def call(q: Tensor, k: Tensor, v: Tensor, mod: T5Bias) -> Tensor:
        return attention(q, k, v, Causal(), score_mod=mod)

    compiled, x = Counted(call), tensors(67)
    for distance in (20, 30, 17, 40):
        mod = T5Bias(4, bidirectional=True, max_distance=distance).double()
        assert_same(compiled(*x, mod), call(*x, mod))


def test_positions_further_apart_than_a_table_are_refused_when_it_runs() -> None:
    def call(q: Tensor, k: Tensor, v: Tensor, mod: ScoreMod) -> Tensor:
        tokens = Tokens(torch.arange(19) * 5)
        return attention(q, k, v, score_mod=mod, q_tokens=tokens, k_tokens=tokens)

    x, clipped = tensors(19), T5Bias(4, bidirectional=True, max_distance=20).double()
    assert_same(Counted(call)(*x, clipped), call(*x, clipped))
    with pytest.raises(NotSupported, match="positions lie up to 180 apart"):
        Counted(call)(*x, ALiBi(4))


def _dropped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k, v, sliding_window(9), dropout_p=0.4)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_dropout_is_what_manual_seed_says(backend: str) -> None:
    compiled, x = Counted(_dropped, backend), tensors(67)
    for seed in (3, 4):
        torch.manual_seed(seed)
        found = compiled(*x)
        torch.manual_seed(seed)
        assert_same(found, _dropped(*x), x)


def test_dropout_is_new_at_each_call_and_right_in_expectation() -> None:
    compiled = Counted(_dropped)
    q, k, _ = tensors(19)
    ones = torch.ones(2, 2, 19, 1, dtype=torch.float64)
    with torch.no_grad():
        every = torch.stack([compiled(q, k, ones) for _ in range(200)])
    assert not torch.equal(every[0], every[1])
    assert abs(float(every.mean()) - 1.0) < 0.01
