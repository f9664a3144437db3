"""Sampling: exact on logits made by hand, and in distribution with a fixed seed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from eyeline.errors import InvalidArgument
from eyeline.sampling import Sampler

INF = math.inf
LOGITS = torch.tensor([1.0, 3.0, -2.0, 2.5, 3.0, 0.0, -1.0])
DRAWS = 20_011


def shares(sampler: Sampler, logits: torch.Tensor = LOGITS) -> torch.Tensor:
    """How often each token is drawn, in one batch of many equal rows."""
    picked = sampler.pick(logits.expand(DRAWS, -1), sampler.generator())
    return picked.bincount(minlength=len(logits)) / DRAWS


def assert_near(found: torch.Tensor, due: torch.Tensor) -> None:
    """Within five standard deviations of a binomial; never drawn where the share is 0."""
    assert not found[due == 0].any()
    assert ((found - due).abs() <= 5 * (due * (1 - due) / DRAWS).sqrt()).all(), (found, due)


def test_greedy_takes_the_first_of_the_largest() -> None:
    rows = torch.stack(
        [LOGITS, LOGITS.flip(0), torch.full((7,), -INF).index_fill(0, torch.tensor(5), 0)]
    )
    assert Sampler().pick(rows).tolist() == [1, 2, 5]
    assert Sampler().pick(rows.bfloat16()).tolist() == [1, 2, 5]
    assert Sampler(top_k=3, top_p=0.1).pick(rows).tolist() == [1, 2, 5]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_temperature(temperature: float, dtype: torch.dtype) -> None:
    sampler = Sampler(temperature=temperature, seed=1)
    due = (LOGITS.double() / temperature).softmax(-1)
    assert_near(shares(sampler, LOGITS.to(dtype)).double(), due)


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-300])
def test_a_small_temperature_is_greedy_but_for_ties(temperature: float) -> None:
    due = torch.tensor([0, 0.5, 0, 0, 0.5, 0, 0])
    assert_near(shares(Sampler(temperature=temperature, seed=2)), due)


def test_masked_tokens_are_never_drawn() -> None:
    logits = LOGITS.index_fill(0, torch.tensor([1, 3]), -INF)
    assert_near(shares(Sampler(temperature=9.0, seed=3), logits), (logits / 9).softmax(-1))


@pytest.mark.parametrize(("top_k", "kept"), [(1, 1), (3, 3), (5, 5), (7, 7), (100, 7)])
def test_top_k_keeps_exactly_k(top_k: int, kept: int) -> None:
    logits = torch.tensor([0.5, 0.25, -1.0, 2.0, 1.0, 1.5, 0.0])
    sampler = Sampler(temperature=2.0, top_k=top_k, seed=4)
    least = logits.sort(descending=True).values[kept - 1]
    assert_near(shares(sampler, logits), (logits.where(logits >= least, -INF) / 2).softmax(-1))


def test_top_k_keeps_k_of_equals() -> None:
    found = shares(Sampler(temperature=1.0, top_k=2, seed=5), torch.zeros(5))
    assert (found > 0).sum() == 2


# Probabilities 0.4, 0.3, 0.2, 0.1, not in order.
KNOWN = torch.tensor([0.2, 0.4, 0.1, 0.3]).log()


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [
        (1e-9, [1]),
        (0.39, [1]),
        (0.41, [1, 3]),
        (0.69, [1, 3]),
        (0.71, [0, 1, 3]),
        (1.0, [0, 1, 2, 3]),
    ],
)
def test_top_p_keeps_the_fewest_that_reach_it(top_p: float, kept: list[int]) -> None:
    due = torch.zeros(4)
    due[kept] = KNOWN.exp()[kept]
    assert_near(shares(Sampler(temperature=1.0, top_p=top_p, seed=6), KNOWN), due / due.sum())


def test_top_p_counts_after_temperature_and_top_k() -> None:
    # At temperature 1/2: 0.16, 0.09, 0.04, 0.01; the first two of them: 0.64 and 0.36.
    cold = Sampler(temperature=0.5, top_k=2, top_p=0.63, seed=7)
    assert_near(shares(cold, KNOWN), torch.tensor([0, 1.0, 0, 0]))
    warm = Sampler(temperature=0.5, top_k=2, top_p=0.65, seed=7)
    assert_near(shares(warm, KNOWN), torch.tensor([0, 0.64, 0, 0.36]))


def test_rows_are_drawn_each_by_its_own_logits() -> None:
    rows = torch.eye(5) * 1e4
    sampler = Sampler(temperature=1.0, top_k=3, top_p=0.9, seed=8)
    assert sampler.pick(rows, sampler.generator()).tolist() == [0, 1, 2, 3, 4]


def test_a_seed_repeats_itself_and_none_does_not() -> None:
    rows = torch.zeros(101, 997)

    def drawn(seed: int | None) -> list[int]:
        sampler = Sampler(temperature=1.0, seed=seed)
        generator = sampler.generator()
        return [*sampler.pick(rows, generator).tolist(), *sampler.pick(rows, generator).tolist()]

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)
    assert drawn(None) != drawn(None)
    assert drawn(0)[:101] != drawn(0)[101:]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", bad) for bad in (-0.1, math.nan, INF, "1", None, True)),
        *(("top_k", bad) for bad in (0, -1, 1.5, True, "3")),
        *(("top_p", bad) for bad in (0, 0.0, -0.5, 1.01, math.nan, True, "1")),
        *(("seed", bad) for bad in (-1, 1 << 63, 0.5, True, "1")),
    ],
)
def test_values_without_meaning_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=name) as error:
        Sampler(**{name: value})
    assert repr(value) in str(error.value)


@pytest.mark.parametrize(
    "logits", [torch.zeros(7), torch.zeros(1, 2, 7), torch.zeros(2, 0), torch.zeros(2, 7).long()]
)
def test_logits_of_another_shape_or_type(logits: torch.Tensor) -> None:
    with pytest.raises(InvalidArgument, match="logits: floating") as error:
        Sampler().pick(logits)
    assert str(tuple(logits.shape)) in str(error.value)


@pytest.mark.parametrize(
    "sampler", [Sampler(), Sampler(temperature=1.0), Sampler(temperature=1.0, top_k=2, top_p=0.5)]
)
@pytest.mark.parametrize("broken", [math.nan, INF])
def test_broken_numbers_are_not_sampled(sampler: Sampler, broken: float) -> None:
    for place in range(7):
        row = LOGITS.index_fill(0, torch.tensor(place), broken)
        with pytest.raises(InvalidArgument, match="NaN"):
            sampler.pick(torch.stack([LOGITS, row]), sampler.generator())
    with pytest.raises(InvalidArgument, match="nothing but -inf"):
        sampler.pick(torch.full((2, 5), -INF), sampler.generator())
