"""Why scores are divided by the root of a head's width: variance, entropy, gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from eyeline import Causal, attention, attention_weights
from eyeline.layers import MultiHeadAttention
from layers.dense import dense, drawn, random

N = 64
WIDTHS = [4, 16, 64, 256, 1024]


def weights(d: int, scale: float | None) -> Tensor:
    q, k = random(1, 16, N, d), random(1, 16, N, d, seed=1)
    return attention_weights(q, k, scale=scale)


def entropy(weight: Tensor) -> float:
    return float(-torch.special.xlogy(weight, weight).sum(-1).mean())


@pytest.mark.parametrize("d", WIDTHS)
def test_variance_of_products_is_d_and_the_scale_brings_it_to_1(d: int) -> None:
    """For entries of mean 0 and variance 1."""
    q, k = random(4096, d), random(4096, d, seed=1)
    products = (q * k).sum(-1)
    assert float(products.var()) == pytest.approx(d, rel=0.1)
    assert float((products / math.sqrt(d)).var()) == pytest.approx(1, rel=0.1)


def test_entropy_of_weights_stays_with_the_scale_and_falls_without() -> None:
    scaled = [entropy(weights(d, None)) for d in WIDTHS]
    plain = [entropy(weights(d, 1.0)) for d in WIDTHS]
    assert max(scaled) - min(scaled) < 0.1
    assert all(value > 0.8 * math.log(N) for value in scaled)
    assert plain == sorted(plain, reverse=True)
    assert plain[0] < scaled[0] and plain[-1] < 0.2


def test_gradients_vanish_without_the_scale() -> None:
    """The softmax's slope p (1 - p), summed up: it is what a score's gradient is multiplied by."""
    slopes = {
        scale: [float((w * (1 - w)).sum(-1).mean()) for w in (weights(d, scale) for d in WIDTHS)]
        for scale in (None, 1.0)
    }
    assert min(slopes[None]) > 0.9
    assert slopes[1.0] == sorted(slopes[1.0], reverse=True)
    assert slopes[1.0][-1] < 0.1


def test_the_scale_is_of_the_heads_width_not_of_their_number() -> None:
    layer = MultiHeadAttention(24, 6).double()
    drawn(layer)
    x = random(2, 11, 24)
    torch.testing.assert_close(layer(x), dense(layer, x, x, x))  # divides by √4
    score = layer._split(layer.q_proj(x)) @ layer._split(layer.k_proj(x)).transpose(-2, -1)
    torch.testing.assert_close(layer.weights(x), (score / math.sqrt(24 / 6)).softmax(-1))
    assert (layer.weights(x) - (score / math.sqrt(6)).softmax(-1)).abs().max() > 1e-2


def test_raw_soft_lookup_and_its_hard_limit() -> None:
    x = random(1, 1, 13, 5)
    torch.testing.assert_close(attention(x, x, x, scale=1.0), (x @ x.mT).softmax(-1) @ x)
    nearest = x[0, 0][(x[0, 0] @ x[0, 0].T).argmax(-1)]
    torch.testing.assert_close(attention(x, x, x, scale=1e6)[0, 0], nearest)


def test_linear_in_values_at_fixed_weights_but_not_in_the_input() -> None:
    q, k, v, other = (random(1, 2, 13, 5, seed=seed) for seed in range(4))
    together = attention(q, k, 2 * v + other)
    torch.testing.assert_close(together, 2 * attention(q, k, v) + attention(q, k, other))
    assert (attention(2 * q, 2 * q, 2 * q) - 2 * attention(q, q, q)).abs().max() > 1e-2


def test_robot_must_obey_orders() -> None:
    """Four tokens. What comes later gets -inf before the softmax, whatever its score: not 0."""
    scores = torch.tensor([[5, 9, 9, 9], [1, 3, 9, 9], [2, 1, 1, 9], [4, 3, 2, 1]]).double().log()
    keys = torch.eye(4).double()  # so that a query is the row of its scores
    weight = attention_weights(scores[None, None], keys[None, None], Causal(), scale=1.0)[0, 0]
    by_hand = [[1, 0, 0, 0], [0.25, 0.75, 0, 0], [0.5, 0.25, 0.25, 0], [0.4, 0.3, 0.2, 0.1]]
    torch.testing.assert_close(weight, torch.tensor(by_hand).double())
    set_to_zero = scores.tril().softmax(-1)
    assert set_to_zero[0].tolist() == pytest.approx([5 / 8, 1 / 8, 1 / 8, 1 / 8])
