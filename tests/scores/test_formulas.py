"""Every modifier equals its paper's formula, gradients too, on every kernel that serves it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from eyeline import attention, attention_weights, explain
from eyeline.scores import ScoreMod, Softcap, T5Bias
from scores.formulas import MODS, PLACES, Call, Place, dense, t5_added

SCALE = 0.31


def results(out: Tensor, inputs: list[Tensor], above: Tensor) -> list[Tensor]:
    return [out.detach(), *torch.autograd.grad((out * above).sum(), inputs, allow_unused=True)]


def compare(
    place: Place,
    mod: object,
    value_width: int,
    formula: Callable[..., Tensor],
    learned: list[Tensor],
) -> set[str]:
    """All kernels that can serve, against the formula. Returns their names."""
    tensors = place.tensors(value_width)
    right = formula(place.call(tensors, SCALE))
    above = torch.linspace(-1, 1, right.numel(), dtype=torch.float64).view_as(right)
    expected = results(right, [*tensors, *learned], above)
    asked = {"score_mod": mod, "scale": SCALE, "q_tokens": place.q, "k_tokens": place.k}
    answers = explain(*tensors, place.pattern, **asked)
    serving = {name for name, answer in answers.items() if answer in ("chosen", "could serve")}
    for backend in serving - {"flex"}:
        out = attention(*tensors, place.pattern, backend=backend, **asked)
        for found, want in zip(results(out, [*tensors, *learned], above), expected, strict=True):
            found, want = (torch.zeros(()) if x is None else x for x in (found, want))
            torch.testing.assert_close(
                found, want, rtol=1e-10, atol=1e-10, msg=f"{place.name}, {backend}"
            )
    return serving


@pytest.mark.parametrize(("mod", "value_width"), [m[1:] for m in MODS], ids=[m[0] for m in MODS])
def test_formula(mod: ScoreMod, value_width: int) -> None:
    learned = list(mod.parameters()) if isinstance(mod, nn.Module) else []
    served = [compare(place, mod, value_width, dense(mod), learned) for place in PLACES]
    assert all({"reference", "tiles"} <= names for names in served)
    # What only adds to scores is served by the kernels that take a bias.
    adds = all(getattr(step, "additive", False) for step in mod.steps())
    assert any("sdpa" in names for names in served) == adds
    assert any("decode" in names for names in served) == adds


T5, CAP = MODS[1][1], Softcap(0.7)
assert isinstance(T5, T5Bias)


def bias_then_cap(call: Call) -> Tensor:
    return call.with_scores(0.7 * ((call.scores() + t5_added(T5, call)) / 0.7).tanh())


def cap_then_bias(call: Call) -> Tensor:
    return call.with_scores(0.7 * (call.scores() / 0.7).tanh() + t5_added(T5, call))


@pytest.mark.parametrize(
    ("given", "formula"), [([T5, CAP], bias_then_cap), ((CAP, T5), cap_then_bias)]
)
def test_modifiers_are_applied_in_the_order_given(given: Any, formula: Any) -> None:
    for place in PLACES[::3]:
        compare(place, given, 5, formula, [T5.weight])


def test_the_orders_differ() -> None:
    q, k, v = PLACES[0].tensors(5)
    one, other = (attention(q, k, v, score_mod=mods) for mods in ([T5, CAP], (CAP, T5)))
    assert (one - other).abs().max() > 0.01


@pytest.mark.parametrize(("mod", "value_width"), [m[1:] for m in MODS], ids=[m[0] for m in MODS])
def test_cached_steps_equal_the_full_run(mod: ScoreMod, value_width: int) -> None:
    place = PLACES[3]
    q, k, v = (x.detach() for x in place.tensors(value_width))
    full = attention(q, k, v, place.pattern, score_mod=mod, backend="reference")
    for start, end in ((0, 1), (1, 2), (2, 7), (7, 30), (30, 31), (31, 47)):
        step = attention(
            q[:, :, start:end], k[:, :, :end], v[:, :, :end], place.pattern, score_mod=mod
        )
        torch.testing.assert_close(step, full[:, :, start:end], rtol=1e-10, atol=1e-10)


def test_returned_weights_are_those_of_the_modified_scores() -> None:
    for name, mod, value_width in MODS:
        if name == "OffsetFactor" or "Shaw" in name:
            continue
        q, k, v = PLACES[3].tensors(value_width)
        weight = attention_weights(q, k, PLACES[3].pattern, score_mod=mod)
        out = attention(q, k, v, PLACES[3].pattern, score_mod=mod, backend="tiles")
        torch.testing.assert_close(weight @ v.repeat_interleave(3, 1), out, rtol=1e-10, atol=1e-10)
