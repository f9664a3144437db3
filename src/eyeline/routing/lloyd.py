"""Lloyd's k-means of the tokens of one call, document by document."""

from __future__ import annotations

import torch
from torch import Tensor

from eyeline.routing.nearest import means, nearest
from eyeline.routing.standing import standing
from eyeline.tokens import NOBODY, Tokens


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
        who, first = standing(tokens.row(b), x.device), 0
        for each, share in zip(who.documents, who.shares(clusters), strict=True):
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
        who = standing(tokens.row(b), torch.device("cpu"))
        shares = who.shares(clusters)
        rows.append([
            each.document for each, share in zip(who.documents, shares, strict=True)
            for _ in range(share)
        ])  # fmt: skip
    most = max([1, *(len(row) for row in rows)])
    there = torch.tensor([[0] * len(row) + [NOBODY] * (most - len(row)) for row in rows])
    positions = torch.where(there == NOBODY, NOBODY, torch.arange(most))
    named = torch.tensor([row + [NOBODY] * (most - len(row)) for row in rows])
    documents = None if tokens.documents is None else named
    if tokens.batch is None:
        return Tokens(positions[0], None if documents is None else documents[0])
    return Tokens(positions, documents)


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
