"""The keys with the best scores: a number of them for each query, or those of enough weight."""

from __future__ import annotations

import torch
from torch import Tensor

from eyeline.kernels.route import Route
from eyeline.routing.greatest import greatest
from eyeline.routing.lists import listed
from eyeline.routing.scored import Scored, sheets
from eyeline.tokens import NOBODY

# Lists of keys of any length are cut into blocks of this many.
_LIST = 16


def best(of: Scored, k: int) -> Route:
    """Each query's k keys of the greatest scores.

    A block is one query and its keys, min(k, S) places; the rest is -1 where fewer are allowed.
    Of equal scores at the edge, keys of the first slots are taken, as far as their scores are
    equal to the last bit.
    """
    (batch, heads, length), keys = of.query.shape[:3], of.key.shape[2]
    count = max(min(k, keys), 1)
    slots = of.query.new_full((*of.shape, count), NOBODY, dtype=torch.int64)
    for sheet in sheets(of):
        found = greatest(sheet.scores.flatten(0, 2), count)
        found = torch.where(found >= 0, found + sheet.first, NOBODY)
        slots[sheet.at][..., : found.shape[1]] = found.view(*sheet.scores.shape[:3], -1)
    asking = length if keys else 0
    queries = torch.arange(asking, device=of.query.device).expand(batch, heads, 1, asking)
    places = slots.view(batch, heads, 1, length * count)[..., : asking * count]
    return Route(queries, places, 1, count, count)


def weighty(of: Scored, t: float) -> Route:
    """Each query's keys of weight softmax(scores) ≥ t; where none reaches t, the weightiest.

    A query has at most 1/t of them, in blocks of at most 16, of which it may have several. Of
    equal weightiest ones below t the first is taken.
    """
    shape, device = of.query.shape, of.query.device
    asking = torch.arange(shape[0] * shape[1] * shape[2], device=device).view(of.shape)
    rows, slots = [asking.new_empty(0)], [asking.new_empty(0)]
    for sheet in sheets(of):
        row, column = _heavy(sheet.scores.flatten(0, 2), t).nonzero().unbind(1)
        rows.append(asking[sheet.at].flatten()[row])
        slots.append(column + sheet.first)
    width = max(min(_LIST, at_most(t), of.key.shape[2]), 1)
    return listed(torch.cat(rows), torch.cat(slots), (shape[0], shape[1], shape[2]), width)


def at_most(t: float) -> int:
    """How many weights of a softmax can reach t: ⌊1/t⌋."""
    return int(1.0 / t + 1e-9)


def _heavy(scores: Tensor, t: float) -> Tensor:
    """Which of a row (m, C) have a weight from t on, or else the first of the weightiest."""
    top, place = scores.max(-1, keepdim=True)
    weight = (scores - top.masked_fill(top == -torch.inf, 0.0)).exp_()
    least = weight.sum(-1, keepdim=True) * t
    heavy = (weight >= least) & (weight > 0.0)
    # The weightiest has exp(0) = 1. A NaN is taken too, so that it is seen in the output.
    return heavy.scatter(1, place, top != -torch.inf)
