"""Lloyd's algorithm one vector at a time, running means, and blocks of one cluster."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from eyeline import Full, Tokens
from eyeline.mechanisms.routed.clustered import best_keys, of_centres, of_members
from eyeline.mechanisms.routed.clusters import (
    centre_tokens,
    clustered,
    first_centroids,
    means,
    moved,
    nearest,
    sums,
)
from eyeline.tokens import NOBODY, default_tokens
from layers.dense import random
from routing.route_oracle import meetings

B, H, L, S, E = 2, 3, 23, 29, 5


def lloyd(x: Tensor, count: int, rounds: int) -> list[int]:
    """Which centre each of x (n, E) is nearest to."""
    centres = [x[(2 * c + 1) * len(x) // (2 * count)] for c in range(count)]
    for left in range(rounds, -1, -1):
        far = [[float((y - c).square().sum()) for c in centres] for y in x]
        chosen = [each.index(min(each)) for each in far]
        for c in range(count if left else 0):
            own = [y for y, each in zip(x, chosen, strict=True) if each == c]
            centres[c] = torch.stack(own).mean(0) if own else centres[c]
    return chosen


@pytest.mark.parametrize("clusters", [1, 4, 23, 40])
@pytest.mark.parametrize("rounds", [1, 3])
def test_clusters_of_documents_in_the_order_of_positions(clusters: int, rounds: int) -> None:
    torch.manual_seed(2)
    positions = torch.stack([torch.randperm(L) for _ in range(B)])
    documents = positions // 9 % 2
    positions[0, :3] = documents[0, :3] = NOBODY
    tokens, x = Tokens(positions, documents), random(B, H, L, E)
    found = clustered(x, tokens, clusters, rounds)
    centres = centre_tokens(tokens, clusters)
    assert centres.documents is not None
    for b in range(B):
        there = [i for i in range(L) if positions[b, i] >= 0]
        first = 0
        assert (found[b][:, positions[b] < 0] == NOBODY).all()
        for document in (0, 1):
            own = [i for i in there if documents[b, i] == document]
            own.sort(key=lambda i: int(positions[b, i]))
            share = min(math.ceil(clusters * len(own) / len(there)), len(own))
            for h in range(H):
                due = [c + first for c in lloyd(x[b, h, own], share, rounds)]
                assert found[b, h, own].tolist() == due
            assert (centres.documents[b, first : first + share] == document).all()
            first += share
        assert (centres.positions[b] >= 0).sum() == first
    alone = clustered(x, default_tokens(L, L)[0], clusters, rounds)
    assert alone[1, 2].tolist() == lloyd(x[1, 2], min(clusters, L), rounds)


def test_nearest_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    x, centres = random(H, L, E), random(H, 7, E, seed=1)
    due = torch.cdist(x, centres).argmin(-1)
    for products in (1 << 22, 2 * H * 7, 1):
        monkeypatch.setattr("eyeline.budgets.budgets.numbers", products)
        assert torch.equal(nearest(x, centres), due)


def test_means_and_their_gradient() -> None:
    x = random(2, 6, E).requires_grad_()
    chosen = torch.tensor([[0, 2, 2, -1, 0, 2], [-1, 1, 1, 1, 1, -1]])
    found, size = means(x, chosen, 3)
    assert size.flatten(1).tolist() == [[2, 0, 3], [0, 4, 0]]
    torch.testing.assert_close(found[0, 0], (x[0, 0] + x[0, 4]) / 2)
    torch.testing.assert_close(found[1, 1], x[1, 1:5].mean(0))
    assert not found[0, 1].any() and not found[1, 0].any()
    (grad,) = torch.autograd.grad(found.sum(), x)
    assert not grad[0, 3].any() and not grad[1, 0].any()
    torch.testing.assert_close(grad[1, 1], torch.full((E,), 0.25, dtype=torch.float64))


def test_running_centroids() -> None:
    x, centroids = (functional.normalize(y, dim=-1) for y in (random(1, 9, E), random(1, 3, E)))
    chosen = torch.tensor([[0, 0, 2, 2, 2, -1, 0, 2, 0]])
    found = moved(centroids, *sums(x, chosen, 3), 0.9)
    assert torch.equal(found[0, 1], centroids[0, 1])
    for c in (0, 2):
        new = 0.9 * centroids[0, c] + 0.1 * x[0, chosen[0] == c].mean(0)
        torch.testing.assert_close(found[0, c], new / new.norm())


def test_first_centroids() -> None:
    """Vectors around four corners are found, whoever was drawn; and few vectors will do."""
    corners = torch.eye(4, dtype=torch.float64)
    x = functional.normalize(corners.repeat(8, 1) + 0.01 * random(2, 32, 4), dim=-1)
    found = first_centroids(x, 16, seed=1)
    assert torch.equal(found, first_centroids(x, 16, seed=1))
    assert not torch.equal(found, first_centroids(x, 16, seed=2))
    torch.testing.assert_close(found.norm(dim=-1), torch.ones(2, 16, dtype=torch.float64))
    assert (torch.cdist(corners.expand(2, -1, -1), found).amin(-1) < 0.1).all()
    assert first_centroids(x[:, :3], 5, seed=0).shape == (2, 5, 4)


@pytest.mark.parametrize("rows", [1, 3, 50])
def test_every_query_meets_the_best_keys_of_its_cluster(rows: int) -> None:
    torch.manual_seed(0)
    chosen = torch.randint(-1, 4, (B, H, L))
    chosen[chosen == 2] = 1  # nobody chose cluster 2
    centres, key = random(B, H, 4, E), random(B, H, S, E, seed=1)
    q, k = default_tokens(L, S)
    c_tokens = Tokens.arange(0, 4)
    best = best_keys(centres, key, 6, c_tokens=c_tokens, k_tokens=k)
    due = (centres @ key.mT).topk(6).indices.sort(-1).values
    assert torch.equal(best, due)
    seen = torch.zeros(B, H, 4, S).scatter_(3, best, 1.0)
    assert torch.equal(meetings(of_centres(best), Full(), c_tokens, k), seen)
    route = of_members(chosen, best, rows)
    assert route.blocks <= L // rows + 4
    expected = seen.gather(2, chosen.clamp(min=0)[..., None].expand(-1, -1, -1, S))
    expected[chosen < 0] = 0
    assert torch.equal(meetings(route, Full(), q, k), expected)


def test_best_keys_of_documents() -> None:
    key, centres = random(1, 2, 9, E), random(1, 2, 3, E, seed=1)
    k = Tokens.listed([0, 1, 2, 3, -1, 5, 6, 7, 8], [0, 0, 0, 0, -1, 5, 5, 5, 5])
    c = Tokens.listed([0, 1, 2], [5, 4, 0])
    best = best_keys(centres, key, 3, c_tokens=c, k_tokens=k)
    score = centres @ key.mT
    for h in range(2):
        assert (
            best[0, h, 0].tolist()
            == (score[0, h, 0, 5:].topk(3).indices + 5).sort().values.tolist()
        )
        assert best[0, h, 1].tolist() == [-1, -1, -1]
        assert best[0, h, 2].tolist() == score[0, h, 2, :4].topk(3).indices.sort().values.tolist()


def test_a_centre_that_nobody_chose_stays() -> None:
    """Two first centres are equal, so that the second gets nobody at first, and the ones then."""
    x = torch.tensor([1.0, 1.0, 1.0, 1.0, 2.9, 5.0], dtype=torch.float64)[:, None]
    found = clustered(x[None, None], Tokens.arange(0, 6), 3, 2)
    assert found.flatten().tolist() == lloyd(x, 3, 2) == [1, 1, 1, 1, 0, 2]
