"""Where tokens stand, brought to one order: each slot may see those up to its own, in its document.

Tokens that are in order already are taken as they are. Others are sorted: keys and queries in one
sequence, by document and position, each query after the keys that it may see. What the scan then
finds at the queries' places is the result, whatever the order was.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from eyeline.mechanisms.linear.chunks import Marks
from eyeline.tokens import NOBODY, Tokens


class Order(NamedTuple):
    """marks: of the sequence in order. query, key: int64 (B or 1, n), the slot that stands at each
    place, any slot where none of its kind does; place: (B or 1, L), where each query stands. All
    three are None if queries and keys are in order as they are."""

    marks: Marks
    query: Tensor | None = None
    key: Tensor | None = None
    place: Tensor | None = None


@lru_cache(maxsize=64)
def in_order(q: Tokens, k: Tokens, *, causal: bool) -> Order:
    """causal: a query attends to keys at its position and before, else to all of its document."""
    with torch.inference_mode(False):  # what is remembered serves training too
        marks = _as_they_are(q.host) if causal and q is k else None
        return Order(marks) if marks is not None else _sorted(q.host, k.host, causal)


def somebody(tokens: Tokens) -> Tensor | None:
    """bool (B or 1, n), False where nobody stands; None if somebody stands everywhere."""
    there = torch.atleast_2d(tokens.host.positions) != NOBODY
    return None if bool(there.all()) else there


def _as_they_are(tokens: Tokens) -> Marks | None:
    """None unless documents lie one after another, and positions go up in each."""
    there, (position, document) = somebody(tokens), _rows(tokens)
    before = _before(there, position)
    known = before >= 0
    at = before.clamp(min=0)
    new = known & (document.gather(1, at) != document)
    up = position.gather(1, at) < position
    counted = there if there is not None else torch.ones_like(known)
    if bool((counted & known & ~new & ~up).any()):
        return None
    segments = (counted & new).long().cumsum(1)
    if not bool(segments.any()):
        return Marks(None, there)
    for row in range(len(document)):  # a document that goes on after another is not in order
        if len(document[row][counted[row]].unique()) != int(segments[row].max()) + 1:
            return None
    return Marks(segments, there)


def _before(there: Tensor | None, position: Tensor) -> Tensor:
    """The slot of the last somebody before each slot, -1 if there is none."""
    slots = torch.arange(position.shape[1]).expand_as(position)
    last = slots if there is None else torch.where(there, slots, -1).cummax(1).values
    return torch.nn.functional.pad(last, (1, 0), value=-1)[:, :-1]


def _sorted(q: Tokens, k: Tokens, causal: bool) -> Order:
    rows = max(q.batch or 1, k.batch or 1)
    both = [
        torch.cat([y.expand(rows, -1) for y in x], 1) for x in zip(_rows(k), _rows(q), strict=True)
    ]
    position, document = both
    nobody = position == NOBODY
    # Keys come first, and each sort keeps the order of what it finds equal.
    order = torch.arange(position.shape[1]).expand(rows, -1)
    for rank in (position if causal else None, document, nobody.long()):
        if rank is not None:
            order = order.gather(1, rank.gather(1, order).argsort(dim=1, stable=True))
    slots, keys = order, k.length
    placed = document.gather(1, order)
    new = torch.nn.functional.pad(placed[:, 1:] != placed[:, :-1], (1, 0))
    marks = Marks(new.long().cumsum(1), (slots < keys) & ~nobody.gather(1, order))
    place = order.argsort(1)[:, keys:]
    return Order(marks, (slots - keys).clamp(min=0), slots.clamp(max=max(keys - 1, 0)), place)


def _rows(tokens: Tokens) -> tuple[Tensor, Tensor]:
    """Positions and documents, (B or 1, n) each."""
    position = torch.atleast_2d(tokens.positions)
    if tokens.documents is None:
        return position, torch.zeros_like(position)
    return position, torch.atleast_2d(tokens.documents)
