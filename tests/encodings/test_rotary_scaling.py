"""Scalings of the rotary encoding against their papers, written out pair by pair."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eyeline.encodings import NTK, Linear, Llama3, Rotary, Scaling, YaRN
from eyeline.errors import InvalidArgument

BASE, PAIRS, TRAINED = 131.0, 7, 509


def scaled(scaling: Scaling, pairs: int = PAIRS, base: float = BASE) -> list[float]:
    speeds: list[float] = Rotary(2 * pairs, base=base, scaling=scaling).frequencies.tolist()
    return speeds


def plain(pairs: int = PAIRS, base: float = BASE) -> list[float]:
    return [base ** (-j / pairs) for j in range(pairs)]


def test_linear_divides_every_speed_which_is_to_divide_positions() -> None:
    assert scaled(Linear(3.0)) == pytest.approx([f / 3 for f in plain()])
    near = Rotary(14, base=BASE).tables(torch.arange(5), dtype=torch.float64)
    far = Rotary(14, base=BASE, scaling=Linear(3.0)).tables(
        3 * torch.arange(5), dtype=torch.float64
    )
    torch.testing.assert_close(near, far)


def test_ntk_is_another_base() -> None:
    want = plain(base=BASE * 5.0 ** (2 * PAIRS / (2 * PAIRS - 2)))
    speeds = scaled(NTK(5.0))
    assert speeds == pytest.approx(want)
    assert speeds[0] == 1.0 and speeds[-1] == pytest.approx(plain()[-1] / 5)


@pytest.mark.parametrize(("length", "same"), [(1, 1.0), (97, 1.0), (194, 3.0), (291, 5.0)])
def test_dynamic_ntk_is_the_ntk_of_one_length(length: int, same: float) -> None:
    assert NTK.dynamic(2.0, length=length, trained_length=97) == NTK(same)


def turns(frequency: float) -> float:
    return TRAINED * frequency / (2 * math.pi)


def test_llama3_pair_by_pair() -> None:
    """From its definition by wavelengths: short ones stay, long ones grow, and between, both."""
    low, high, speeds = 1.5, 20.0, scaled(Llama3(8.0, 1.5, 20.0, TRAINED))
    kinds = []
    for frequency, got in zip(plain(), speeds, strict=True):
        wavelength = 2 * math.pi / frequency
        if wavelength < TRAINED / high:
            kinds.append("kept")
            assert got == frequency
        elif wavelength > TRAINED / low:
            kinds.append("slow")
            assert got == frequency / 8
        else:
            kinds.append("between")
            share = (TRAINED / wavelength - low) / (high - low)
            assert got == pytest.approx((1 - share) * frequency / 8 + share * frequency)
    assert kinds == ["kept"] * 3 + ["between"] * 3 + ["slow"]


@pytest.mark.parametrize("truncate", [True, False])
def test_yarn_pair_by_pair(truncate: bool) -> None:
    """Pairs that turn more than 32 times stay, fewer than once are slowed down, and a line lies
    between, over the numbers of the pairs."""
    scaling = YaRN(8.0, TRAINED, beta_fast=32.0, beta_slow=1.5, truncate=truncate)
    exact = [PAIRS * math.log(TRAINED / (2 * math.pi * r)) / math.log(BASE) for r in (32.0, 1.5)]
    low, high = (math.floor(exact[0]), math.ceil(exact[1])) if truncate else exact
    for j, (frequency, got) in enumerate(zip(plain(), scaled(scaling), strict=True)):
        share = min(max((j - low) / (high - low), 0), 1)
        assert got == pytest.approx(frequency * (1 - share) + frequency / 8 * share)
        if not truncate:
            assert (got == frequency) == (turns(frequency) >= 32)
            assert (got == pytest.approx(frequency / 8)) == (turns(frequency) <= 1.5)
    assert len({round(f / got, 6) for f, got in zip(plain(), scaled(scaling), strict=True)}) > 3


def test_yarn_multiplies_what_it_turns() -> None:
    """q and k both, so the scores by the square; only the features that turn."""
    assert YaRN(4.0, 97).magnitude == pytest.approx(0.1 * math.log(4) + 1)
    assert YaRN(4.0, 97, attention_factor=1.25).magnitude == 1.25
    assert YaRN(1.0, 97).magnitude == Linear(9.0).magnitude == 1.0
    rotary = Rotary(11, scaling=YaRN(4.0, 97, attention_factor=1.25), rotated=6)
    x = torch.randn(1, 1, 3, 11, dtype=torch.float64)
    out = rotary.rotate(x, rotary.tables(torch.tensor([0, 1, 89]), dtype=torch.float64))
    norms = [each[..., :6].norm(dim=-1) for each in (x, out)]
    torch.testing.assert_close(norms[1], norms[0] * 1.25)
    assert torch.equal(x[..., 6:], out[..., 6:])


KINDS: dict[str, Any] = {
    "linear": lambda factor, length: Linear(factor),
    "ntk": lambda factor, length: NTK(factor),
    "yarn": lambda factor, length: YaRN(factor, length, beta_fast=4.0, beta_slow=0.5),
    "llama3": lambda factor, length: Llama3(factor, original_length=length),
}


@pytest.mark.parametrize("kind", KINDS)
@given(
    factor=st.floats(1.0, 64.0),
    pairs=st.integers(2, 97),
    base=st.floats(50.0, 1e7),
    length=st.integers(13, 10**5),
)
def test_no_pair_gets_faster_or_overtakes(
    kind: str, factor: float, pairs: int, base: float, length: int
) -> None:
    try:
        got = scaled(KINDS[kind](factor, length), pairs, base)
    except InvalidArgument:
        assert kind == "yarn" and length / (2 * math.pi) > 4.0 * base
        return
    for before, after in zip(plain(pairs, base), got, strict=True):
        assert before / factor * (1 - 1e-12) <= after <= before * (1 + 1e-12)
    assert all(a >= b * (1 - 1e-12) for a, b in pairwise(got))
    if factor == 1.0:
        assert got == pytest.approx(plain(pairs, base))


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Linear(0.5), "Linear factor=0.5"),
        (lambda: Linear(math.nan), "Linear factor=nan"),
        (lambda: Linear(math.inf), "Linear factor=inf"),
        (lambda: Linear("2"), "Linear factor='2'"),  # type: ignore[arg-type]
        (lambda: NTK(0.0), "NTK factor=0.0"),
        (lambda: NTK.dynamic(2.0, length=0, trained_length=7), "dynamic length=0"),
        (lambda: YaRN(2.0, 0), "YaRN original_length=0"),
        (lambda: YaRN(2.0, 97, beta_fast=1.0), "YaRN beta_fast=1.0: a number above 1"),
        (lambda: YaRN(2.0, 97, beta_slow=0.0), "YaRN beta_slow=0.0"),
        (lambda: YaRN(2.0, 97, attention_factor=0.0), "YaRN attention_factor=0.0"),
        (lambda: Rotary(8, scaling=YaRN(2.0, 3, truncate=False)), "all 4 pairs .* turn less"),
        (lambda: Rotary(8, base=2.0, scaling=YaRN(2.0, 10**6)), "more than beta_fast times"),
        (lambda: Llama3(2.0, 4.0, 4.0), "Llama3 high_freq_factor=4.0: a number above 4"),
        (lambda: Llama3(2.0, original_length=-1), "Llama3 original_length=-1"),
    ],
    ids=[
        "below 1", "nan", "inf", "text", "ntk", "no length", "trained on nothing", "beta order",
        "beta zero", "magnitude", "too short", "too long", "factor order", "negative length",
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(make: Any, named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        make()
