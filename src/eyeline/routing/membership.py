"""Clusters of equal size: each centroid takes the queries and the keys that are most like it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from eyeline.routing.route import Route
from eyeline.routing.standing import Standing, standing
from eyeline.tokens import NOBODY, Tokens

# So many similarities of centroids and tokens are held at once, at most.
_PRODUCTS = 1 << 22


@torch.no_grad()
def membership(
    query: Tensor,
    key: Tensor,
    centroids: Tensor,
    window: int,
    *,
    q_tokens: Tokens,
    k_tokens: Tokens,
) -> Route:
    """The ``window`` queries and keys with the greatest x·centroid: block c is of centroid c.

    query (B, H, L, E), key (B, H, S, E), centroids (H, C, E), of one dtype. Of each document a
    centroid takes ⌈window · n_d / n⌉, the best ones of it; all where there are fewer. Members
    stand in the order of documents and positions; labels are documents.

    C · (L + S) · E multiplications a head; what is held at once does not grow with them.
    """
    sides = (query, q_tokens), (key, k_tokens)
    queries, keys = (_members(x, centroids, tokens, window) for x, tokens in sides)
    rows, columns = queries.shape[3], keys.shape[3]
    if not rows or not columns:
        queries, keys = queries[..., :0], keys[..., :0]
    slots = [x.flatten(2).unsqueeze(2) for x in (queries, keys)]
    labels: list[Tensor | None] = [None, None]
    if q_tokens.documents is not None and k_tokens.documents is not None:
        documents = q_tokens.documents, k_tokens.documents
        labels = [_documents(x, each) for x, each in zip(slots, documents, strict=True)]
    width = max(columns, 1)
    return Route(slots[0], slots[1], max(rows, 1), width, width, labels[0], labels[1])


def _documents(slots: Tensor, documents: Tensor) -> Tensor:
    """The documents of slots (B, H, 1, M), -1 of nobody's."""
    known = documents.to(slots.device).expand(slots.shape[0], -1)[:, None, None]
    found = known.expand(*slots.shape[:3], -1).gather(3, slots.clamp(min=0))
    return found.masked_fill(slots == NOBODY, NOBODY)


def _members(x: Tensor, centroids: Tensor, tokens: Tokens, window: int) -> Tensor:
    """The slots of x (B, H, n, E) that each centroid takes, (B, H, C, W); -1 for fewer than W."""
    rows = [
        _of_row(each, centroids, standing(tokens.row(b), x.device), window)
        for b, each in enumerate(x.unbind(0))
    ]
    most = max((row.shape[2] for row in rows), default=0)
    slots = torch.full((*x.shape[:2], centroids.shape[1], most), NOBODY, device=x.device)
    for b, row in enumerate(rows):
        slots[b] = functional.pad(row, (0, most - row.shape[2]), value=NOBODY)
    return slots


def _of_row(x: Tensor, centroids: Tensor, who: Standing, window: int) -> Tensor:
    """One batch row, x (H, n, E): slots (H, C, W)."""
    there = x.index_select(1, who.slots).mT
    shares = who.shares(window)
    if not shares:
        return who.slots.new_empty(*centroids.shape[:2], 0)
    step = max(_PRODUCTS // (x.shape[0] * who.size), 1)
    parts = [_best(some @ there, who, shares) for some in centroids.split(step, 1)]
    return who.slots[torch.cat(parts, 1).sort(2).values]


def _best(similar: Tensor, who: Standing, shares: list[int]) -> Tensor:
    """The places (H, c, W) of the most similar tokens (H, c, n) of each document."""
    found = [
        similar[:, :, each.start : each.stop].topk(share, sorted=False).indices + each.start
        for each, share in zip(who.documents, shares, strict=True)
    ]
    return torch.cat(found, 2)
