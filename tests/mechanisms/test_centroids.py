"""Attention over centroids: Lloyd's algorithm written out, and what a centroid stands for."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from eyeline import Tokens, attention
from eyeline.mechanisms import Compressed
from eyeline.mechanisms.fewer.compressed import centroids
from eyeline.tokens.ordering import sorted_by
from layers.dense import random

B, H, HK, L, E, EV, FACTOR, ROUNDS = 2, 4, 2, 23, 5, 3, 4, 3


def heads(length: int = L, keys: int = L) -> list[Tensor]:
    return [
        random(B, H, length, E), random(B, HK, keys, E, seed=1), random(B, HK, keys, EV, seed=2)
    ]  # fmt: skip


def same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def lloyd(keys: Tensor) -> list[list[int]]:
    """Which keys (n, E) go to which centre, one key at a time."""
    n = len(keys)
    count = -(-n // FACTOR)
    centres = [keys[(2 * c + 1) * n // (2 * count)] for c in range(count)]
    for _ in range(ROUNDS + 1):
        chosen: list[list[int]] = [[] for _ in centres]
        for i, key in enumerate(keys):
            distance = [float((key - centre).square().sum()) for centre in centres]
            chosen[distance.index(min(distance))].append(i)
        centres = [
            keys[each].mean(0) if each else old for each, old in zip(chosen, centres, strict=True)
        ]
    return chosen


def formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One row: softmax(q · mean of keys / √d + log size) · mean of values."""
    out = []
    for h in range(H):
        own = h // (H // HK)
        chosen = [each for each in lloyd(k[own].detach()) if each]
        keys = torch.stack([k[own, each].mean(0) for each in chosen])
        values = torch.stack([v[own, each].mean(0) for each in chosen])
        sizes = torch.tensor([len(each) for each in chosen]).double()
        out.append((q[h] @ keys.T / math.sqrt(E) + sizes.log()).softmax(-1) @ values)
    return torch.stack(out)


@pytest.mark.parametrize("keys", [1, 3, 4, 5, 22, 23])
def test_formula(keys: int) -> None:
    ours = Compressed(FACTOR, by="centroids", rounds=ROUNDS)
    inputs = [x.requires_grad_() for x in heads(7, keys)]
    got = ours(*inputs)
    want = torch.stack([formula(*(x[row] for x in inputs)) for row in range(B)])
    same(got, want)
    loss = random(*want.shape, seed=9)
    grads = (torch.autograd.grad((x * loss).sum(), inputs) for x in (got, want))
    for own, other in zip(*grads, strict=True):
        same(own, other)


def test_equal_keys_of_a_cluster_are_exact_attention() -> None:
    """What the size of a cluster in its weight is for: each centroid counts for all its keys."""
    q, k, v = heads()
    few = k[:, :, [3, 7, 11, 13, 17, 19]]
    # Each of the first centres, at 1, 5, 9, …, is another key.
    which = torch.tensor([0, 0, 5, 3, 4, 1, 5, 5, 5, 2, 0, 1, 1, 3, 0, 3, 3, 4, 2, 2, 2, 5, 0])
    k = few[:, :, which]
    same(Compressed(FACTOR, by="centroids", rounds=9)(q, k, v), attention(q, k, v))
    same(Compressed(1, by="centroids", rounds=1)(*heads()), attention(*heads()))


@pytest.mark.parametrize("side", ["left", "right"])
def test_pads_are_in_no_cluster(side: str) -> None:
    ours, (q, k, v) = Compressed(FACTOR, by="centroids"), heads()
    tokens = Tokens.padded([L, 9], side)
    real = tokens.positions[1] >= 0
    clean = ours(q, k, v, q_tokens=tokens, k_tokens=tokens)
    k[1][:, ~real], v[1][:, ~real] = 1e4, -1e4
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out = ours(*inputs, q_tokens=tokens, k_tokens=tokens)
    assert torch.equal(out, clean)
    assert not out[1][:, ~real].any()
    same(out[1:, :, real], ours(*(x[1:, :, real] for x in inputs)))
    for grad in torch.autograd.grad(out.square().sum(), inputs):
        assert grad.isfinite().all()
        assert not grad[1][:, ~real].any()


def test_nobody_at_all() -> None:
    ours, inputs = Compressed(FACTOR, by="centroids"), [x.requires_grad_() for x in heads()]
    out = ours(*inputs, q_tokens=Tokens.arange(0, L), k_tokens=Tokens.padded([0, L]))
    assert not out[0].any() and out[1].all()
    for grad in torch.autograd.grad(out.square().sum(), inputs):
        assert grad.isfinite().all()
    assert not ours(*heads(3, 0)).any()


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_a_cluster_that_nobody_chooses() -> None:
    q, k, v = heads()
    k = torch.full_like(k, 3)  # all equal: the first centre gets every key
    order = sorted_by(Tokens.arange(0, L), "positions")
    found = centroids(k, v, order, FACTOR, ROUNDS)
    assert found.size[..., 0].eq(L).all() and not found.size[..., 1:].any()
    for dtype in (torch.float64, torch.float16):
        inputs = [x.to(dtype).requires_grad_() for x in (q, k, v)]
        out = Compressed(FACTOR, by="centroids")(*inputs)
        atol = 1e-10 if dtype == torch.float64 else 2e-3
        mean = inputs[2].mean(2, keepdim=True).repeat_interleave(2, 1).expand_as(out)
        torch.testing.assert_close(out, mean, rtol=0, atol=atol)
        with torch.autograd.detect_anomaly(check_nan=True):
            for grad in torch.autograd.grad(
                Compressed(FACTOR, by="centroids")(*inputs).sum(), inputs
            ):
                assert grad.isfinite().all()


def test_half_types_sum_widely() -> None:
    """The sum of 3,000 values of 40 is more than float16 holds; their mean is not."""
    q, k = torch.ones(1, 1, 2, 4).half(), torch.ones(1, 1, 3000, 4).half()
    out = Compressed(1500, by="centroids")(q, k, 40 * k)
    assert torch.equal(out, torch.full_like(q, 40))


def test_a_centre_without_keys_stays_where_it_was() -> None:
    """The first centres are 5, 5, -5, 3: the second must not move to 0, near the key at -0.5."""
    k = torch.tensor([5, 5, 5, 5, 5, -0.5, -5, -5, 3, 3, 3, 5]).double().view(1, 1, -1, 1)
    order = sorted_by(Tokens.arange(0, 12), "positions")
    found = centroids(k, k, order, 3, 2)
    assert found.size[0, 0].tolist() == [6, 0, 2, 4]
    assert found.key[0, 0, :, 0].tolist() == [5, 0, -5, 2.125]


def test_deterministic_and_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, inputs = Compressed(FACTOR, by="centroids"), heads()
    want = ours(*inputs)
    assert all(torch.equal(ours(*inputs), want) for _ in range(10))
    monkeypatch.setattr("eyeline.budgets.budgets.numbers", 50)
    same(ours(*inputs), want)


def test_linear_in_values() -> None:
    ours, (q, k, v) = Compressed(FACTOR, by="centroids"), heads()
    other = random(B, HK, L, EV, seed=3)
    same(ours(q, k, 2 * v + other), 2 * ours(q, k, v) + ours(q, k, other))
    assert not ours(q, k, 0 * v).any()
    same(ours(q, k, v * 0 + 3), torch.full((B, H, L, EV), 3).double())
