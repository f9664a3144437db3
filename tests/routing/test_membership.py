"""Clusters of equal size against loops over centroids, documents and tokens."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from eyeline import Tokens
from eyeline.mechanisms.routed.membership import membership
from eyeline.tokens import NOBODY, default_tokens
from eyeline.tokens.groups import by_document

B, H, L, S, E, C = 2, 3, 23, 29, 5, 4


def unit(*shape: int, seed: int) -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return functional.normalize(x, dim=-1)


def members(x: Tensor, centroid: Tensor, tokens: Tokens, row: int, window: int) -> list[int]:
    """Whom a centroid takes of one head, document by document."""
    at = tokens.row(row)
    there = [i for i in range(len(x)) if int(at.positions[i]) >= 0]
    named = [0] * len(x) if at.documents is None else at.documents.tolist()
    taken = []
    for document in sorted({named[i] for i in there}):
        own = [i for i in there if named[i] == document]
        share = math.ceil(min(window, len(there)) * len(own) / len(there))
        own.sort(key=lambda i: -float(x[i] @ centroid))
        taken += sorted(own[:share], key=lambda i: int(at.positions[i]))
    return taken


def padded() -> tuple[Tokens, Tokens]:
    return Tokens.padded([L, 6], "right"), Tokens.padded([11, S], "left")


def documents() -> tuple[Tokens, Tokens]:
    """Not in order, of several sizes, one of them without keys, pads among them."""
    torch.manual_seed(1)
    k = torch.stack([torch.randperm(S) for _ in range(B)])
    named = torch.tensor([3, 0, 7])[(k * 3 // S).clamp(max=2)]
    k[0, 5] = k[1, 8] = named[0, 5] = named[1, 8] = NOBODY
    q, of_q = k[:, :L].clone(), named[:, :L].clone()
    of_q[1, of_q[1] == 7] = 9
    return Tokens(q, of_q), Tokens(k, named)


@pytest.mark.parametrize("window", [1, 7, 23, 100])
@pytest.mark.parametrize("which", ["default", "padded", "documents"])
def test_each_centroid_takes_the_most_similar(which: str, window: int) -> None:
    made = {"padded": padded, "documents": documents, "default": lambda: default_tokens(L, S)}
    q_tokens, k_tokens = made[which]()
    query, key, centroids = (
        unit(B, H, L, E, seed=1),
        unit(B, H, S, E, seed=2),
        unit(H, C, E, seed=3),
    )
    route = membership(query, key, centroids, window, q_tokens=q_tokens, k_tokens=k_tokens)
    assert (route.blocks, route.lanes, route.step) == (C, 1, route.columns)
    most = [0, 0]
    for b in range(B):
        for h in range(H):
            for c in range(C):
                found = [
                    route.queries[b, h, 0, c * route.rows : (c + 1) * route.rows].tolist(),
                    route.keys[b, h, 0, c * route.columns : (c + 1) * route.columns].tolist(),
                ]
                sides = (query[b, h], q_tokens), (key[b, h], k_tokens)
                for n, (x, tokens) in enumerate(sides):
                    due = members(x, centroids[h, c], tokens, b, window)
                    most[n] = max(most[n], len(due))
                    assert found[n] == due + [NOBODY] * (len(found[n]) - len(due))
    assert [route.rows, route.columns] == most


def test_labels_are_documents() -> None:
    q_tokens, k_tokens = documents()
    query, key, centroids = (
        unit(B, H, L, E, seed=1),
        unit(B, H, S, E, seed=2),
        unit(H, C, E, seed=3),
    )
    route = membership(query, key, centroids, 7, q_tokens=q_tokens, k_tokens=k_tokens)
    assert route.q_labels is not None and q_tokens.documents is not None
    for b in range(B):
        slots, labels = route.queries[b].flatten(), route.q_labels[b].flatten()
        known = q_tokens.documents[b][slots.clamp(min=0)]
        assert torch.equal(labels, torch.where(slots < 0, NOBODY, known))
    plain = membership(query, key, centroids, 7, q_tokens=Tokens.arange(0, L),
                       k_tokens=Tokens.arange(0, S))  # fmt: skip
    assert plain.q_labels is None and plain.k_labels is None


@pytest.mark.parametrize(("queries", "keys"), [(0, 5), (5, 0), (0, 0)])
def test_nobody(queries: int, keys: int) -> None:
    query, key, centroids = (unit(B, H, n, E, seed=1) for n in (queries, keys, C))
    tokens = [Tokens.arange(0, n) for n in (queries, keys)]
    route = membership(query, key, centroids[0], 7, q_tokens=tokens[0], k_tokens=tokens[1])
    assert route.blocks == 0
    assert membership(query[:0], key[:0], centroids[0], 7, q_tokens=tokens[0],
                      k_tokens=tokens[1]).blocks == 0  # fmt: skip


def test_similarities_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, centroids = (
        unit(B, H, L, E, seed=1),
        unit(B, H, S, E, seed=2),
        unit(H, C, E, seed=3),
    )
    q_tokens, k_tokens = default_tokens(L, S)
    routes = []
    for products in (1 << 22, 3 * H * L, 1):
        monkeypatch.setattr("eyeline.budgets.budgets.numbers", products)
        routes.append(membership(query, key, centroids, 7, q_tokens=q_tokens, k_tokens=k_tokens))
    for route in routes[1:]:
        assert torch.equal(route.queries, routes[0].queries)
        assert torch.equal(route.keys, routes[0].keys)


def test_who_stands() -> None:
    tokens = Tokens.listed([4, -1, 2, 9, 0, 7], [1, -1, 0, 1, 1, 0])
    found = by_document(tokens)
    assert found.slots.tolist() == [2, 5, 4, 0, 3]
    assert [tuple(each) for each in found.stretches] == [(0, 0, 2), (1, 2, 5)]
    assert found.shares(4) == [2, 3] and found.shares(1) == [1, 1] and found.shares(99) == [2, 3]
    nobody = by_document(Tokens.listed([-1, -1]))
    assert len(nobody.slots) == 0 and nobody.shares(3) == []
