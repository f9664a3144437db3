"""Clusters of equal size: each centroid takes the queries and the keys that are most like it."""

from __future__ import annotations

from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.nn import functional

from eyeline.budgets import at_once, budgets
from eyeline.kernels.route import Route
from eyeline.mechanisms.routed.best import among_greatest
from eyeline.tokens import NOBODY, Tokens
from eyeline.tokens.groups import ByDocument, by_document


class Members(NamedTuple):
    """A route of clusters, and the centroid nearest to each query (B, H, L) and key (B, H, S).

    Nearest is by x·centroid, of equal ones the first; -1 for nobody.
    """

    route: Route
    q_nearest: Tensor
    k_nearest: Tensor


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
    return _route([_taken(x, centroids, tokens, window, None) for x, tokens in sides], sides)


def members(
    query: Tensor,
    key: Tensor,
    centroids: Tensor,
    window: int,
    *,
    q_tokens: Tokens,
    k_tokens: Tokens,
) -> Members:
    """``membership``, and who is nearest to whom, by the same products."""
    sides = (query, q_tokens), (key, k_tokens)
    nearest = [torch.full(x.shape[:3], NOBODY, device=x.device) for x, _ in sides]
    taken = [
        _taken(x, centroids, tokens, window, found)
        for (x, tokens), found in zip(sides, nearest, strict=True)
    ]
    return Members(_route(taken, sides), *nearest)


def _route(taken: list[Tensor], sides: tuple[tuple[Tensor, Tokens], ...]) -> Route:
    """The blocks of what each centroid takes of queries and keys, (B, H, C, ·) each."""
    queries, keys = taken
    rows, columns = queries.shape[3], keys.shape[3]
    if not rows or not columns:
        queries, keys = queries[..., :0], keys[..., :0]
    slots = [x.flatten(2).unsqueeze(2) for x in (queries, keys)]
    labels: list[Tensor | None] = [None, None]
    documents = [tokens.documents for _, tokens in sides]
    if all(x is not None for x in documents):
        labels = [_documents(x, y) for x, y in zip(slots, documents, strict=True) if y is not None]
    width = max(columns, 1)
    return Route(slots[0], slots[1], max(rows, 1), width, width, labels[0], labels[1])


def _documents(slots: Tensor, documents: Tensor) -> Tensor:
    """The documents of slots (B, H, 1, M), -1 of nobody's."""
    known = documents.to(slots.device).expand(slots.shape[0], -1)[:, None, None]
    found = known.expand(*slots.shape[:3], -1).gather(3, slots.clamp(min=0))
    return found.masked_fill(slots == NOBODY, NOBODY)


@torch.no_grad()
def _taken(
    x: Tensor, centroids: Tensor, tokens: Tokens, window: int, nearest: Tensor | None
) -> Tensor:
    """The slots of x (B, H, n, E) that each centroid takes, (B, H, C, W); -1 for fewer than W.

    nearest (B, H, n): filled with the centroid that is nearest to each, if it is asked for.
    """
    rows = [
        _of_row(
            each, centroids, by_document(tokens.row(b), x.device), window,
            None if nearest is None else nearest[b],
        )
        for b, each in enumerate(x.unbind(0))
    ]  # fmt: skip
    most = max((row.shape[2] for row in rows), default=0)
    slots = torch.full((*x.shape[:2], centroids.shape[1], most), NOBODY, device=x.device)
    for b, row in enumerate(rows):
        slots[b] = functional.pad(row, (0, most - row.shape[2]), value=NOBODY)
    return slots


def _of_row(
    x: Tensor, centroids: Tensor, who: ByDocument, window: int, nearest: Tensor | None
) -> Tensor:
    """One batch row, x (H, n, E): slots (H, C, W)."""
    if not len(who.slots):
        return who.slots.new_empty(*centroids.shape[:2], 0)
    shares, size = who.shares(window), at_once(centroids.shape[1] * len(who.slots), budgets.numbers)
    starts = range(0, len(x), size)
    found = [
        _of_heads(
            x[h : h + size], centroids[h : h + size], who, shares,
            None if nearest is None else nearest[h : h + size],
        )
        for h in starts
    ]  # fmt: skip
    return who.slots[torch.cat(found).sort(2).values]


def _of_heads(
    x: Tensor, centroids: Tensor, who: ByDocument, shares: list[int], nearest: Tensor | None
) -> Tensor:
    """A few heads, or some centroids of one head at a time: places in ``who`` (H, C, W)."""
    there = who.ordering.take(x, 1).mT
    step = at_once(len(x) * len(who.slots), budgets.numbers)
    parts, leading = [], _Leading(x, len(who.slots))
    for first in range(0, centroids.shape[1], step):
        similar = centroids[:, first : first + step] @ there
        parts.append(_best(similar, who, shares))
        if nearest is not None:
            leading.meet(similar, first)
    if nearest is not None:
        nearest.index_copy_(1, who.slots, leading.centroid)
    return torch.cat(parts, 1)


@final
class _Leading:
    """The centroid that each token was most alike, of those that were met."""

    def __init__(self, x: Tensor, count: int) -> None:
        self._similar = x.new_full((x.shape[0], count), -torch.inf)
        self.centroid = torch.zeros_like(self._similar, dtype=torch.int64)

    def meet(self, similar: Tensor, first: int) -> None:
        """Products (H, c, n) with the centroids from ``first`` on."""
        best = similar.amax(1, keepdim=True)
        # The first at which the best stands: torch's argmax along such a dimension is slow. Where
        # it stands a number from 1 to c, elsewhere none above 0.
        count = similar.shape[1]
        falling = torch.arange(count, 0, -1, dtype=best.dtype, device=best.device)[:, None]
        apart = (similar - best).sign_()
        place = count - torch.add(falling, apart, alpha=count, out=apart).amax(1).long()
        best = best.squeeze(1)
        self.centroid = torch.where(best > self._similar, place + first, self.centroid)
        self._similar = torch.maximum(self._similar, best)


def _best(similar: Tensor, who: ByDocument, shares: list[int]) -> Tensor:
    """The places (H, c, W) of the most similar tokens (H, c, n) of each document."""
    found = [
        among_greatest(similar[:, :, each.start : each.stop], share) + each.start
        for each, share in zip(who.stretches, shares, strict=True)
    ]
    return torch.cat(found, 2)
