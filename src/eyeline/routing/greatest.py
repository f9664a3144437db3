"""The k greatest numbers of each row, exactly, and of equal ones always the first.

A row is cut into groups. Whatever is among the k greatest of a row is in one of the k groups with
the greatest maxima: only these are looked into, and they are found the same way.
"""

from __future__ import annotations

import torch
from torch import Tensor

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
