"""Clusters of vectors: the nearest centre, Lloyd's k-means of one call, centroids that run on."""

from __future__ import annotations

from operator import itemgetter

import torch
from torch import Tensor
from torch.nn import functional

from eyeline.budgets import at_once, budgets
from eyeline.checks import widened
from eyeline.tokens import NOBODY, Tokens
from eyeline.tokens.groups import by_document


def unit(x: Tensor) -> Tensor:
    """x / |x| along the last dimension; 0 stays 0, without a gradient."""
    wide = widened(x)
    length: Tensor = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    return (wide / length.masked_fill(length == 0.0, 1.0)).to(x.dtype)


# Which centre each vector is nearest to, and sums and means of those that chose the same.


def nearest(x: Tensor, centres: Tensor, live: Tensor | None = None) -> Tensor:
    """argmin_c |x - c|² = argmax_c x·c - |c|²/2: (R, n) for x (R, n, E) and centres (R, C, E).

    live: bool (R, C), the centres that there are; all if not given.
    """
    shift = centres.square().sum(-1) / 2
    if live is not None:
        shift = shift.masked_fill(~live, torch.inf)
    parts = x.split(at_once(shift.numel(), budgets.numbers), 1)
    # On CPUs max is three times as fast as argmax.
    found = [(part @ centres.mT - shift.unsqueeze(1)).max(2).indices for part in parts]
    return torch.cat(found, 1)


def means(x: Tensor, chosen: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The means (R, count, E) of those who chose each, 0 of none; else as ``sums``."""
    total, size = sums(x, chosen, count)
    return total / size.clamp(min=1), size


def sums(x: Tensor, chosen: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The sums (R, count, E) of those of x (R, n, E) who chose each, and how many, (R, count, 1).

    chosen: int64 (R, n), -1 for nobody. Differentiable in x.
    """
    rows = torch.arange(x.shape[0], device=x.device)[:, None] * (count + 1)
    index = (rows + chosen.masked_fill(chosen == NOBODY, count)).flatten()
    places = x.shape[0] * (count + 1)
    # Not bincount, which no graph knows.
    size = index.new_zeros(places).index_add(0, index, torch.ones_like(index))
    total = x.new_zeros(places, x.shape[2]).index_add(0, index, x.flatten(0, 1))
    return total.view(-1, count + 1, x.shape[2])[:, :count], size.view(-1, count + 1, 1)[:, :count]


# Lloyd's k-means of the tokens of one call, document by document.


@torch.no_grad()
def clustered(x: Tensor, tokens: Tokens, clusters: int, rounds: int) -> Tensor:
    """Which cluster each vector of x (B, H, L, E) is in, (B, H, L); -1 for nobody.

    Lloyd's algorithm in each row, head and document; a document has ⌈clusters · n_d / n⌉ of the
    clusters, numbered one after the other. The first centres are evenly spaced in the order of
    positions; nothing is drawn by chance.
    """
    found = torch.full(x.shape[:3], NOBODY, device=x.device)
    # Rows in which the same tokens stand are one row with more heads.
    batch, heads = (1, x.shape[0] * x.shape[1]) if tokens.batch is None else x.shape[:2]
    x, rows = x.reshape(batch, heads, *x.shape[2:]), found.view(batch, heads, x.shape[2])
    for b in range(batch):
        who, first = by_document(tokens.row(b), x.device), 0
        for each, share in zip(who.stretches, who.shares(clusters), strict=True):
            slots = who.slots[each.start : each.stop]
            own = x[b][:, slots]
            rows[b].index_copy_(1, slots, lloyd(own, _evenly(own, share), rounds) + first)
            first += share
    return found


def centre_tokens(tokens: Tokens, clusters: int) -> Tokens:
    """What stands for the clusters of ``clustered``: (C,) or (B, C), each in its document.

    C is at least 1: the most clusters of a row; nobody is where a row has fewer.
    """
    batch = 1 if tokens.batch is None else tokens.batch
    rows = []
    for b in range(batch):
        who = by_document(tokens.row(b))
        shares = who.shares(clusters)
        rows.append([
            each.document for each, share in zip(who.stretches, shares, strict=True)
            for _ in range(share)
        ])  # fmt: skip
    most = max([1, *(len(row) for row in rows)])
    there = torch.tensor([[0] * len(row) + [NOBODY] * (most - len(row)) for row in rows])
    positions = torch.where(there == NOBODY, NOBODY, torch.arange(most))
    named = torch.tensor([row + [NOBODY] * (most - len(row)) for row in rows])
    documents = None if tokens.documents is None else named
    segments = None if tokens.segments is None else torch.zeros_like(positions)
    centres = Tokens(positions, documents, segments)
    return centres if tokens.batch is not None else centres.mapped(itemgetter(0))


def lloyd(
    x: Tensor,
    centres: Tensor,
    rounds: int,
    *,
    real: Tensor | None = None,
    live: Tensor | None = None,
) -> Tensor:
    """Which centre each vector of x (R, n, E) is nearest to after all rounds, (R, n).

    centres: (R, C, E), those of the first round; one that nobody chose stays where it is. real:
    bool (R, n), who is there, -1 for the others; live: bool (R, C), which centres are.
    """
    for left in range(rounds, -1, -1):
        chosen = nearest(x, centres, live)
        chosen = chosen if real is None else chosen.masked_fill(~real, NOBODY)
        if left:
            mean, size = means(x, chosen, centres.shape[1])
            centres = torch.where(size > 0, mean, centres)
    return chosen


def _evenly(x: Tensor, count: int) -> Tensor:
    """So many vectors of x (R, n, E), evenly spaced."""
    return x[:, (2 * torch.arange(count, device=x.device) + 1) * x.shape[1] // (2 * count)]


# Running centroids: how they begin, and how they follow the vectors nearest to them.

_ROUNDS = 5


@torch.no_grad()
def first_centroids(x: Tensor, count: int, seed: int) -> Tensor:
    """Centroids (H, C, E) of length 1, for vectors x (H, n, E) of length 1, n at least 1.

    The first are vectors drawn by the seed, the same places in each head; then five rounds of
    k-means by x·centroid. A centroid that nobody is nearest to stays where it is.
    """
    drawn = torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(seed))
    places = drawn[torch.arange(count) % x.shape[1]].to(x.device)
    centroids = x[:, places]
    for _ in range(_ROUNDS):
        centroids = moved(centroids, *sums(x, nearest(x, centroids), count), 0.0)
    return centroids


@torch.no_grad()
def moved(centroids: Tensor, total: Tensor, size: Tensor, decay: float) -> Tensor:
    """decay · centroid + (1 - decay) · mean of those who chose it, brought to length 1.

    total, size: the ``sums`` of those. Who is chosen by nobody stays.
    """
    mean = total / size.clamp(min=1)
    new = functional.normalize(torch.lerp(mean, centroids, decay), dim=-1)
    return torch.where(size > 0, new, centroids)
