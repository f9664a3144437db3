"""The k greatest numbers of each row, exactly, and of equal ones always the first.

A row is cut into groups. The k-th greatest of the groups' maxima is no more than the k-th greatest
number of the row: groups, and then numbers, that do not reach it need not be sorted.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Numbers to a group; of groups in any order about 1.15 · k are then left. Rows of fewer groups to
# each number that is sought are searched as they are, and so are rows that leave more than this.
_GROUP, _FEWEST, _LEFT = 16, 4, 4


def greatest(scores: Tensor, k: int) -> Tensor:
    """Columns of the k greatest of each row (m, C): int64 (m, min(k, C)), -1 for -inf.

    Of numbers that equal the k-th greatest the first columns are taken. NaN is above all others.
    """
    left = _left(scores, k) if scores.shape[1] >= _FEWEST * _GROUP * k else None
    if left is None:
        return _sought(scores, k)
    return _of(left, _sought(_taken(scores, left), k))


def _left(scores: Tensor, k: int) -> Tensor | None:
    """The columns that may be among the k greatest, in order, then -1: (m, w); None if too many."""
    step = -(-scores.shape[1] // _GROUP)
    # Neighbours, which are often great together, are in different groups.
    whole = scores.shape[1] // step * step
    maxima = scores[:, :whole].unflatten(1, (-1, step)).amax(1)
    rest = scores[:, whole:]
    torch.maximum(maxima[:, : rest.shape[1]], rest, out=maxima[:, : rest.shape[1]])
    bound = _bound(maxima, k)
    groups = _reaching(maxima, bound)
    if not k <= groups.shape[1] <= _LEFT * k:
        return None
    member = torch.arange(0, _GROUP * step, step, device=scores.device).unsqueeze(1)
    columns = groups.unsqueeze(1) + member
    beyond = (groups < 0).unsqueeze(1) | (columns >= scores.shape[1])
    columns = columns.masked_fill_(beyond, -1).flatten(1)
    found = _reaching(_taken(scores, columns), bound)
    return _of(columns, found) if found.shape[1] <= _LEFT * k else None


def _bound(maxima: Tensor, k: int) -> Tensor:
    """What the k-th greatest of a row is at least, (m, 1): of fewer maxima if there are many."""
    groups = 4 * k
    if maxima.shape[1] >= 2 * groups:
        whole = maxima.shape[1] // groups * groups
        maxima = maxima[:, :whole].unflatten(1, (-1, groups)).amax(1)
    bound = maxima.topk(k, 1).values[:, -1:]
    return bound.clamp_(min=torch.finfo(bound.dtype).min)


def _reaching(x: Tensor, bound: Tensor) -> Tensor:
    """The columns of x (m, n) that are not below their row's bound, in order, then -1: (m, w)."""
    row, column = (x < bound).logical_not_().nonzero().unbind(1)
    count = torch.bincount(row, minlength=len(x))
    found = row.new_full((len(x), int(count.max())), -1)
    found[row, torch.arange(len(row), device=x.device) - (count.cumsum(0) - count)[row]] = column
    return found


def _taken(x: Tensor, columns: Tensor) -> Tensor:
    """x[columns] row by row, -inf where they are -1."""
    return x.gather(1, columns.clamp(min=0)).masked_fill_(columns < 0, -torch.inf)


def _of(columns: Tensor, places: Tensor) -> Tensor:
    """columns[places] row by row, -1 where they are -1."""
    return columns.gather(1, places.clamp(min=0)).masked_fill_(places < 0, -1)


def _sought(scores: Tensor, k: int) -> Tensor:
    """As ``greatest``, by torch, which does not say what it takes of equal ones."""
    value, place = scores.topk(min(k + 1, scores.shape[1]), 1)
    if value.shape[1] > k:
        last, following = value[:, k - 1], value[:, k]
        value, place = value[:, :k], place[:, :k]
        tied = (last == following) & (last > -torch.inf)
        if bool(tied.any()):
            place[tied] = _first_of_equals(scores[tied], last[tied].unsqueeze(1), k)
    return place.masked_fill(value == -torch.inf, -1)


def _first_of_equals(scores: Tensor, last: Tensor, k: int) -> Tensor:
    """Of rows (m, C) all above their last score (m, 1), and the first that equal it: (m, k)."""
    above, equal = scores > last, scores == last
    missing = k - above.sum(1, keepdim=True)
    taken = above | (equal & (equal.cumsum(1) <= missing))
    return taken.nonzero()[:, 1].view(-1, k)
