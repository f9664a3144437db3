"""A modifier of one's own in five lines, FlexAttention's callables, what the suite finds wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from eyeline import Causal, attention, attention_weights, explain, streaming
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.scores import ALiBi, Bias, Factor, Product, ScoreMod, ScoreStep, Shaw, T5Bias
from eyeline.testing import check_score_mod
from scores.formulas import PLACES, Call
from scores.test_formulas import compare


class Fading(ScoreMod):
    """score - log(1 + |i - j|)"""

    def steps(self) -> tuple[Bias, ...]:
        return (Bias(lambda distance: -(1 + distance.abs()).log()[None]),)


class Flatter(ScoreMod, ScoreStep):
    """A step of one's own: asinh(score) in place of the score."""

    needs_after = True

    def steps(self) -> tuple[ScoreStep, ...]:
        return (self,)

    def define(self, score: Tensor, pairs: Any) -> Tensor:
        return score.asinh()

    def forward(self, score: Tensor, block: Any, table: Any) -> Tensor:
        return score.asinh_()

    def backward(self, slope: Tensor, after: Tensor, block: Any, table: Any) -> Tensor:
        return slope / after.cosh()


class Gated(nn.Module, ScoreMod):
    """A trained slope for all heads."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(0.2))

    def forward(self, distance: Tensor) -> Tensor:
        return (self.slope * distance.clamp(-9, 9))[None]

    def steps(self) -> tuple[Bias, ...]:
        return (Bias(self, (-9, 9)),)


def test_five_lines_equal_their_formula_everywhere() -> None:
    def formula(call: Call) -> Tensor:
        return call.with_scores(call.scores() - torch.log(1.0 + call.distance.abs()))

    for place in PLACES[::2]:
        compare(place, Fading(), 5, formula, [])


@pytest.mark.parametrize("mod", [Fading(), Flatter(), Gated()], ids=lambda m: type(m).__name__)
def test_the_suite_passes_what_is_right(mod: ScoreMod) -> None:
    check_score_mod(mod, heads=3, width=5)


def test_the_suite_passes_ours_with_widths_that_differ() -> None:
    check_score_mod(Shaw(5, 4, value_dim=7), heads=6, width=5, value_width=7)
    check_score_mod(T5Bias(2, bidirectional=False), heads=2, width=8)


class Slope(Flatter):
    """The derivative has a wrong factor."""

    def backward(self, slope: Tensor, after: Tensor, block: Any, table: Any) -> Tensor:
        return slope / after.cosh() * 0.999


class Forward(Flatter):
    """Blocks are given something else than the definition says."""

    def forward(self, score: Tensor, block: Any, table: Any) -> Tensor:
        return score.asinh_().mul_(0.999)


class Forgets(Flatter):
    """Says that its result is not needed, and reads it."""

    needs_after = False


class Additive(Flatter):
    """Says that it only adds."""

    additive = True


class Short(Gated):
    """Says that it ends before it does."""

    def steps(self) -> tuple[Bias, ...]:
        return (Bias(self, (-9, 6)),)


class Relative(Gated):
    """Looks at all distances that it happens to be given."""

    def forward(self, distance: Tensor) -> Tensor:
        return (self.slope * (distance - distance.min()))[None]

    def steps(self) -> tuple[Bias, ...]:
        return (Bias(self),)


class Shapeless(Gated):
    def forward(self, distance: Tensor) -> Tensor:
        return super().forward(distance)[0]


class Narrow(ScoreMod):
    def steps(self) -> tuple[Product, ...]:
        return (Product(lambda distance: torch.zeros(1, len(distance), 4)),)


WRONG = [Slope(), Forward(), Forgets(), Additive(), Short(), Relative(), Shapeless(), Narrow()]


@pytest.mark.parametrize("mod", WRONG, ids=lambda m: type(m).__name__)
def test_the_suite_finds_what_is_wrong(mod: ScoreMod) -> None:
    with pytest.raises(AssertionError):
        check_score_mod(mod, heads=4, width=5)


def bend(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return torch.where(i > j + 3, score * 0.5, score) - 0.1 * (i - j).abs() / (h + 1) + 0.01 * b


def test_a_callable_runs_where_all_scores_are_kept() -> None:
    def formula(call: Call) -> Tensor:
        b, h = torch.arange(2)[:, None, None, None], torch.arange(6)[None, :, None, None]
        score = torch.where(call.distance < -3, call.scores() * 0.5, call.scores())
        return call.with_scores(score - 0.1 * call.distance.abs() / (h + 1) + 0.01 * b)

    for place in PLACES[::2]:
        served = compare(place, bend, 5, formula, [])
        assert "reference" in served and not served & {"tiles", "sdpa", "decode"}


def test_a_callable_is_refused_by_name() -> None:
    q, k, v = PLACES[3].tensors(5)
    for backend, words in (
        ("tiles", "callable"),
        ("sdpa", "add numbers"),
        ("decode", "add numbers"),
    ):
        with pytest.raises(NotSupported, match=words):
            attention(q, k, v, Causal(), score_mod=bend, backend=backend)
        assert words in explain(q, k, v, Causal(), score_mod=bend)[backend]
    both = attention(q, k, v, Causal(), score_mod=[bend, ALiBi(6)])
    assert both.shape == v.shape[:1] + q.shape[1:3] + v.shape[-1:]
    with pytest.raises(InvalidArgument, match="same shape"):
        attention(q, k, v, score_mod=lambda s, b, h, i, j: s[0])
    with pytest.raises(InvalidArgument, match="L × S"):
        attention(q, k, v, score_mod=torch.zeros(47, 47))


def test_a_callable_says_what_a_modifier_says() -> None:
    q, k, v = PLACES[3].tensors(5)
    slopes = torch.tensor(ALiBi(6).per_head, dtype=torch.float64)
    called = attention(
        q, k, v, streaming(9, 2), score_mod=lambda s, b, h, i, j: s - slopes[h] * (i - j).abs()
    )
    torch.testing.assert_close(
        called, attention(q, k, v, streaming(9, 2), score_mod=ALiBi(6), backend="tiles")
    )


def test_factors_of_one_modifier_multiply() -> None:
    class Twice(ScoreMod):
        def steps(self) -> tuple[Factor, ...]:
            half = Factor(lambda distance: (0.5 + 0 * distance)[None])
            return (half, half)

    q, k, v = PLACES[0].tensors(5)
    torch.testing.assert_close(attention(q, k, v, score_mod=Twice()), attention(q, k, v) / 4)
    weight = attention_weights(q, k, score_mod=Twice())
    torch.testing.assert_close(weight.sum(-1), torch.full(q.shape[:3], 0.25, dtype=q.dtype))
    check_score_mod(Twice(), heads=2, width=2)
