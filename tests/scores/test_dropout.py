"""Dropout leaves out the same weights in every kernel, as many as it should, without structure."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from eyeline import Causal, Pattern, PerHead, Strided, attention, longformer, sparse_transformer
from eyeline.scores import Dropout, OffsetFactor, Shaw, Softcap
from eyeline.scores.base import Pairs
from eyeline.testing.cases import trained
from eyeline.tokens import Tokens, default_tokens
from scores.formulas import HEADS, KEY_HEADS, PLACES, Call, N, Place

P = 0.3


def kept(p: float, seed: int, shape: tuple[int, ...]) -> Tensor:
    """What the definition multiplies weights by."""
    ones = torch.ones(shape, dtype=torch.float64)
    q, k = default_tokens(*shape[2:])
    return Dropout(p, seed).define(ones, Pairs(ones, 1.0, q, k))


def seed_drawn(seed: int) -> int:
    torch.manual_seed(seed)
    return int(torch.randint(1 << 62, ()))


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
def test_kernels_drop_the_same_weights_forward_and_backward(place: Place) -> None:
    tensors = place.tensors(5)
    call: Call = place.call(tensors, 0.4)
    weight = call.weights(call.scores())
    right = call.output(weight * kept(P, seed_drawn(3), tuple(weight.shape)))
    above = torch.linspace(-1, 1, right.numel(), dtype=torch.float64).view_as(right)
    expected = torch.autograd.grad((right * above).sum(), tensors, retain_graph=True)
    for backend in ("reference", "tiles"):
        torch.manual_seed(3)
        out = attention(
            *tensors, place.pattern, scale=0.4, dropout_p=P, backend=backend,
            q_tokens=place.q, k_tokens=place.k,
        )  # fmt: skip
        torch.testing.assert_close(out, right, rtol=1e-10, atol=1e-10)
        found = torch.autograd.grad((out * above).sum(), tensors)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "pattern",
    [
        Causal() & Strided(5), sparse_transformer(6), longformer(5, [0, 20]),
        PerHead([Causal(), Strided(3), Strided(4), Causal(), Strided(7), Causal()]),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("budget", [4 << 20, 2000])
def test_the_very_same_ones_in_reordered_plans_and_small_pieces(
    pattern: Pattern, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eyeline.budgets.budgets.piece", budget)
    q, k = (torch.zeros(2, heads, N, 4) for heads in (HEADS, KEY_HEADS))
    v = torch.eye(N).expand(2, KEY_HEADS, N, N)
    weights = []
    for backend in ("reference", "tiles"):
        torch.manual_seed(11)
        weights.append(attention(q, k, v, pattern, dropout_p=P, backend=backend))
    dropped = kept(P, seed_drawn(11), tuple(weights[0].shape)) == 0
    plain = attention(q, k, v, pattern, backend="reference")
    for weight in weights:
        assert torch.equal(weight == 0, dropped | (plain == 0))
        torch.testing.assert_close(weight[weight > 0], plain[weight > 0] / (1 - P))


def test_with_steps_before_and_after() -> None:
    mods = [Softcap(1.0), trained(Shaw(5, 3)), trained(OffsetFactor(HEADS, 4))]
    learned = [x for mod in mods[1:] for x in mod.parameters()]  # type: ignore[union-attr]
    for place in PLACES[::3]:
        results = []
        for backend in ("reference", "tiles"):
            tensors = place.tensors(5)
            torch.manual_seed(2)
            out = attention(
                *tensors, place.pattern, score_mod=mods, dropout_p=P, backend=backend,
                q_tokens=place.q, k_tokens=place.k,
            )  # fmt: skip
            results.append([out, *torch.autograd.grad(out.square().sum(), [*tensors, *learned])])
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9])
def test_as_many_as_it_should(p: float) -> None:
    factor = kept(p, 17, (2, 3, 211, 223))
    assert set(factor.unique().tolist()) == {0.0, 1 / (1 - p)}
    share, pairs = float((factor > 0).double().mean()), factor.numel()
    assert abs(share - (1 - p)) < 5 * math.sqrt(p * (1 - p) / pairs)


def noise(seed: int) -> Tensor:
    """Mean 0, variance 1, if nothing is wrong: which pairs of 3 rows and 5 heads are kept."""
    some = (kept(P, seed, (3, 5, 256, 256)) > 0).double()
    return (some - (1 - P)) / math.sqrt(P * (1 - P))


NOISE = noise(5)


def is_noise(products: Tensor) -> bool:
    """Whether their mean is 0, as far as so many independent numbers of variance 1 can tell."""
    return abs(float(products.mean())) < 5 / math.sqrt(products.numel())


def test_no_row_column_or_diagonal_is_special() -> None:
    slanted = torch.stack([NOISE.roll(i, -1)[..., i, :] for i in range(256)], -2)
    skewed = torch.stack([NOISE.roll(-i, -1)[..., i, :] for i in range(256)], -2)
    for lines in (NOISE.sum(-1), NOISE.sum(-2), slanted.sum(-2), skewed.sum(-2)):
        lines = lines / 16
        assert is_noise(lines), "a mean that is not 0"
        assert is_noise((lines.square() - 1) / math.sqrt(2)), "sums differ more or less than noise"
        assert lines.abs().max() < 5.5


@pytest.mark.parametrize("shift", [1, 2, 8, 64, 128])
@pytest.mark.parametrize("axis", [-1, -2])
def test_neighbours_do_not_know_of_each_other(axis: int, shift: int) -> None:
    assert is_noise((NOISE * NOISE.roll(shift, axis)).narrow(axis, shift, 256 - shift))
    turned = NOISE * NOISE.roll((shift, shift), (-2, -1))
    assert is_noise(turned[..., shift:, shift:])
    assert is_noise(NOISE * NOISE.mT * (1 - torch.eye(256)))


def test_heads_rows_and_seeds_do_not_know_of_each_other() -> None:
    for shift in (1, 2):
        assert is_noise(NOISE * NOISE.roll(shift, 1))
        assert is_noise(NOISE * NOISE.roll(shift, 0))
    assert is_noise(
        NOISE[:, :3] * NOISE[:, :3].transpose(0, 1) * (1 - torch.eye(3)[..., None, None])
    )
    for seed in (4, 6, 5 + (1 << 32), 5 + (1 << 61)):
        assert is_noise(NOISE * noise(seed))


def test_four_corners_of_a_rectangle_do_not_know_of_each_other() -> None:
    """A sum of what row and column say would show here."""
    for down, right in ((1, 1), (1, 7), (16, 1), (128, 64)):
        pairs = NOISE[..., down:, :] * NOISE[..., :-down, :]
        assert is_noise(pairs[..., right:] * pairs[..., :-right])


def test_right_in_expectation() -> None:
    q, k, v = (x[:, :KEY_HEADS].detach() for x in PLACES[3].tensors(5))
    plain = attention(q, k, v, PLACES[3].pattern)
    torch.manual_seed(0)
    runs = torch.stack(
        [attention(q, k, v, PLACES[3].pattern, dropout_p=P, backend="tiles") for _ in range(200)]
    )
    error = (runs.mean(0) - plain) / (runs.std(0) / math.sqrt(200)).clamp(min=1e-9)
    assert error.abs().max() < 5.5 and abs(float(error.square().mean()) - 1) < 0.3


def test_an_empty_row_stays_empty() -> None:
    q, k, v = PLACES[0].tensors(5)
    nobody = Tokens(torch.where(torch.arange(N) < 20, -1, torch.arange(N)))
    for backend in ("reference", "tiles"):
        out = attention(
            q, k, v, Causal(), dropout_p=P, q_tokens=nobody, k_tokens=nobody, backend=backend
        )
        assert not out[:, :, :20].any() and out.isfinite().all()
        grads = torch.autograd.grad(out.sum(), (q, k, v))
        assert all(g.isfinite().all() and not g[:, :, :20].any() for g in grads)
