"""Losses by hand, and intervals that cover what they say they cover."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from eyeline.errors import InvalidArgument
from eyeline.measuring import paired_change, perplexity
from eyeline.measuring.likelihood import student
from models.tiny import ids, llama


def test_losses_equal_a_hand_computation() -> None:
    model, text = llama(), ids(1, 17)
    logits = model(text)[0].double()
    want = [
        math.log(sum(math.exp(x) for x in logits[i].tolist())) - float(logits[i, text[0, i + 1]])
        for i in range(16)
    ]
    got = model.losses_of(model.hidden(text), text)[0].detach()
    assert got.shape == (16,)
    torch.testing.assert_close(
        got.double(), torch.tensor(want, dtype=torch.float64), rtol=1e-5, atol=0
    )
    assert perplexity(got) == pytest.approx(math.exp(sum(want) / 16), rel=1e-5)


def test_losses_do_not_depend_on_the_pieces_they_are_made_in() -> None:
    model, text = llama(), ids(2, 19)
    hidden = model.hidden(text)
    pieces = model.losses_of(hidden, text, chunk=5)
    torch.testing.assert_close(pieces, model.losses_of(hidden, text))
    torch.testing.assert_close(model.losses(text), pieces)


def test_the_model_that_guesses_evenly_has_the_perplexity_of_the_vocabulary() -> None:
    assert perplexity(torch.full((7,), math.log(89.0))) == pytest.approx(89.0)


def differences(generator: torch.Generator, count: int, *, mean: float, memory: float) -> Tensor:
    """Noise in which neighbours are alike: x[i] = memory · x[i-1] + noise."""
    noise = torch.randn(count, generator=generator, dtype=torch.float64)
    values, last = [], 0.0
    for x in noise.tolist():
        last = memory * last + x
        values.append(mean + last)
    return torch.tensor(values)


def test_the_interval_covers_the_true_change_also_where_neighbours_are_alike() -> None:
    generator = torch.Generator().manual_seed(3)
    hits, narrow = 0, 0
    for _ in range(300):
        baseline = torch.randn(1021, generator=generator).exp().double()
        change = paired_change(
            baseline + differences(generator, 1021, mean=0.05, memory=0.7), baseline
        )
        hits += change.low <= math.expm1(0.05) <= change.high
        assert change.low < change.relative < change.high
        naive = 1.96 / math.sqrt(1021) * (1 / (1 - 0.7**2)) ** 0.5
        narrow += abs(math.log1p(change.relative) - 0.05) <= naive
    assert 0.90 <= hits / 300 <= 0.99
    assert narrow / 300 < 0.7  # as if tokens were independent: the test can tell the difference


def test_what_makes_a_text_hard_for_both_drops_out() -> None:
    baseline = torch.linspace(0, 9, 101)
    change = paired_change(baseline + 0.1, baseline)
    for value in (change.low, change.relative, change.high):
        assert value == pytest.approx(math.expm1(0.1), abs=1e-6)
    assert (change.confidence, change.blocks) == (0.95, 3)


@pytest.mark.parametrize(
    ("freedom", "t"), [(1, 12.7062), (2, 4.30265), (3, 3.18245), (5, 2.57058), (31, 2.03951)]
)
def test_student_agrees_with_the_tables(freedom: int, t: float) -> None:
    assert student(0.95, freedom) == pytest.approx(t, rel=0.01)


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"\(5,\).*\(7,\).*same"):
        paired_change(torch.zeros(5), torch.zeros(7))
    with pytest.raises(InvalidArgument, match=r"63 losses are too few.*64"):
        paired_change(torch.zeros(63), torch.zeros(63))
