"""Attention along a route, pair by pair: how often each meets, and the whole matrix of that."""

from __future__ import annotations

import torch
from torch import Tensor

from eyeline import Pattern, Tokens
from eyeline.kernels.route import Route
from eyeline.patterns import kept_apart
from eyeline.tokens import NOBODY


def meetings(route: Route, pattern: Pattern, q: Tokens, k: Tokens) -> Tensor:
    """How often each pair meets, (B, H, L, S), pair by pair."""
    count = torch.zeros(*route.queries.shape[:2], q.length, k.length)
    queries, keys = route.queries.tolist(), route.keys.tolist()
    labels = [None if x is None else x.tolist() for x in (route.q_labels, route.k_labels)]
    band = torch.ones(route.rows, route.columns) if route.band is None else route.band
    places = [
        (n * route.rows + r, n * route.step + c)
        for n in range(route.blocks) for r, c in band.nonzero().tolist()
    ]  # fmt: skip
    for b in range(count.shape[0]):
        rows = (q.row(b), k.row(b))
        rule = kept_apart(pattern, *rows)
        points = rows[0].points(axis=-2), rows[1].points(axis=-1)
        for h in range(count.shape[1]):
            allowed = rule.at(b, h).sees(*points).expand(q.length, k.length).tolist()
            for a in range(route.lanes):
                lane = queries[b][h][a], keys[b][h][a]
                mark = [None if x is None else x[b][h][a] for x in labels]
                for i, j in places:
                    x, y = lane[0][i], lane[1][j]
                    apart = mark[0] is not None and mark[1] is not None and mark[0][i] != mark[1][j]
                    if x != NOBODY and y != NOBODY and not apart and allowed[x][y]:
                        count[b, h, x, y] += 1
    return count


def dense(count: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of softmax over pairs that meet ``count`` times, scale 1/√E."""
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    some = count.any(-1, keepdim=True)
    share = torch.where(some, count, 1.0).to(q.dtype)
    score = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(share == 0.0, -torch.inf)
    score = score + share.clamp(min=1).log()
    out = (score.softmax(-1) @ v).masked_fill(~some, 0.0)
    return out, score.logsumexp(-1).masked_fill(~some[..., 0], -torch.inf)
