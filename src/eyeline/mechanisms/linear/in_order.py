"""Where tokens stand, brought to one order: each slot may see those up to its own, in its document.

Tokens that are in order already are taken as they are. Others are sorted: keys and queries in one
sequence, by document and position, each query after the keys that it may see. What the scan then
finds at the queries' places is the result, whatever the order was.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from eyeline.mechanisms.linear.chunks import Marks
from eyeline.tokens import NOBODY, Tokens
from eyeline.tokens.groups import by_document
from eyeline.tokens.ordering import real_slots, remembered_by_tokens, sorted_by


class Order(NamedTuple):
    """marks: of the sequence in order. query, key: int64 (B or 1, n), the slot that stands at each
    place, any slot where none of its kind does; place: (B or 1, L), where each query stands. All
    three are None if queries and keys are in order as they are."""

    marks: Marks
    query: Tensor | None = None
    key: Tensor | None = None
    place: Tensor | None = None


@remembered_by_tokens
def in_order(q: Tokens, k: Tokens, *, causal: bool) -> Order:
    """causal: a query attends to keys at its position and before, else to all of its document."""
    marks = _as_they_are(q.host) if causal and q is k else None
    return Order(marks) if marks is not None else _sorted(q.host, k.host, causal)


def _as_they_are(tokens: Tokens) -> Marks | None:
    """None unless documents lie one after another, and positions go up in each."""
    sorted_tokens = by_document(tokens)
    slots, number = sorted_tokens.ordering.slots, sorted_tokens.number
    index = slots.clamp(min=0)
    position = torch.atleast_2d(tokens.positions)
    rank = (position != NOBODY).long().cumsum(1).gather(1, index)
    position = position.gather(1, index)
    new = functional.pad(number.diff(dim=1) != 0, (1, 0), value=True) & (slots != NOBODY)
    follows = (rank.diff(dim=1) == 1) & (position.diff(dim=1) > 0)
    if bool(((slots != NOBODY) & ~new)[:, 1:].logical_and(~follows).any()):
        return None
    somebody = real_slots(tokens)
    if sorted_tokens.count < 2:
        return Marks(None, somebody)
    begins = torch.zeros_like(sorted_tokens.ordering.places)
    row, place = new.nonzero().unbind(1)
    begins[row, slots[row, place]] = 1
    return Marks((begins.cumsum(1) - 1).clamp(min=0), somebody)


def _sorted(q: Tokens, k: Tokens, causal: bool) -> Order:
    rows, keys = max(q.batch or 1, k.batch or 1), k.length
    # Keys come first, and what is equal keeps its order: a query stands after its equals.
    columns = [
        None if a is None or b is None else torch.cat([x.expand(rows, -1) for x in (b, a)], 1)
        for a, b in ((q.positions, k.positions), (q.documents, k.documents))
    ]
    names = ("documents", "positions") if causal else ("documents",)
    both = Tokens(*columns)  # type: ignore[arg-type]
    order = sorted_by(both, *names)
    slots = order.slots
    segments = torch.zeros_like(slots)
    if both.documents is not None:
        placed = both.documents.gather(1, slots.clamp(min=0))
        segments[:, 1:] = (placed[:, 1:] != placed[:, :-1]).long().cumsum(1)
    marks = Marks(segments, (slots < keys) & order.real)
    place = order.places[:, keys:].clamp(min=0)
    return Order(marks, (slots - keys).clamp(min=0), slots.clamp(0, max(keys - 1, 0)), place)
