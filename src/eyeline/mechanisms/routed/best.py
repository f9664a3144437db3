"""The keys with the best scores: a number of them for each query, or those of enough weight."""

from __future__ import annotations

import torch
from torch import Tensor

from eyeline.kernels.route import Route
from eyeline.mechanisms.routed.scored import Scored, sheets
from eyeline.tokens import NOBODY

# The k greatest numbers of each row, exactly, and of equal ones always the first.
#
# A row is cut into groups. Whatever is among the k greatest of a row is in one of the k groups with
# the greatest maxima: only these are looked into, and they are found the same way.


# Numbers to a group. Rows of fewer groups to each number that is sought are searched as they are.
_GROUP, _FEWEST = 6, 3


def greatest(scores: Tensor, k: int) -> Tensor:
    """Columns of the k greatest of each row (m, C): int64 (m, min(k, C)), -1 for -inf.

    Of numbers that equal the k-th greatest the first columns are taken. NaN is above all others.
    """
    place = among_greatest(scores, min(k + 1, scores.shape[1]))
    value, order = scores.gather(1, place).sort(1, descending=True)
    place = place.gather(1, order)
    if value.shape[1] > k:
        last, following = value[:, k - 1], value[:, k]
        value, place = value[:, :k], place[:, :k]
        tied = (last == following) & (last > -torch.inf)
        if bool(tied.any()):
            place[tied] = _first_of_equals(scores[tied], last[tied].unsqueeze(1), k)
    return place.masked_fill(value == -torch.inf, -1)


def among_greatest(scores: Tensor, k: int) -> Tensor:
    """Columns of k of the greatest of each row (…, C), k at most C, in any order: int64 (…, k).

    Of numbers that equal the k-th greatest any are taken.
    """
    count = scores.shape[-1]
    if count < _FEWEST * _GROUP * k:
        return scores.topk(k, sorted=False).indices
    # Neighbours, which are often great together, are in different groups.
    step = count // _GROUP
    members = torch.arange(0, _GROUP * step, step, device=scores.device).unsqueeze(1)
    maxima = scores[..., : _GROUP * step].unflatten(-1, (_GROUP, step)).amax(-2)
    groups = (among_greatest(maxima, k).unsqueeze(-2) + members).flatten(-2)
    rest = torch.arange(_GROUP * step, count, device=scores.device)
    sought = torch.cat([groups, rest.expand(*groups.shape[:-1], -1)], -1)
    return sought.gather(-1, scores.gather(-1, sought).topk(k, sorted=False).indices)


def _first_of_equals(scores: Tensor, last: Tensor, k: int) -> Tensor:
    """Of rows (m, C) all above their last score (m, 1), and the first that equal it: (m, k)."""
    above, equal = ~(scores <= last), scores == last  # NaN is above
    missing = k - above.sum(1, keepdim=True)
    taken = above | (equal & (equal.cumsum(1) <= missing))
    return taken.nonzero()[:, 1].view(-1, k)


# A route of lists: each query with keys of its own, as many as it has.


def listed(rows: Tensor, slots: Tensor, shape: tuple[int, int, int], width: int) -> Route:
    """Pairs of a query and a key to blocks of one query and ``width`` keys; memory is theirs.

    rows: int64 (P,), queries by their number among all of shape (B, H, L); slots: (P,), the keys.
    A query with more keys than ``width`` stands in several blocks, which the kernel merges. So
    what a block computes depends on its own query's keys alone, not on how many others have.
    """
    heads, length = shape[0] * shape[1], shape[2]
    order = rows.argsort(stable=True)
    rows, slots = rows[order], slots[order]
    counts = torch.bincount(rows, minlength=heads * length)
    rank = torch.arange(len(rows), device=rows.device) - _before(counts)[rows]
    blocks = (counts + width - 1) // width
    of_head = blocks.view(heads, length).sum(1)
    most = int(of_head.max()) if heads else 0
    block = (_before(blocks)[rows] + rank // width) - _before(of_head)[rows // max(length, 1)]
    keys = rows.new_full((heads, most, width), NOBODY)
    keys[rows // max(length, 1), block, rank % width] = slots
    queries = rows.new_full((heads, most), NOBODY)
    asking = torch.arange(heads * length, device=rows.device).repeat_interleave(blocks)
    head = asking // max(length, 1)
    place = torch.arange(len(asking), device=rows.device) - _before(of_head)[head]
    queries[head, place] = asking % max(length, 1)
    return Route(
        queries.view(*shape[:2], 1, most), keys.view(*shape[:2], 1, most * width),
        1, width, width,
    )  # fmt: skip


def _before(counts: Tensor) -> Tensor:
    """How many come before each."""
    return counts.cumsum(0) - counts


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
