"""Slots in another order, and back: the one way in which tokens are sorted, grouped and picked.

By position, by document and position, by segment, by blocks of positions, by neighbours: each
is a function here that makes an ``Ordering``, on the CPU, once for the same tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import NamedTuple, ParamSpec, TypeVar, final

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument
from eyeline.memory import remembered, traced
from eyeline.tokens.tokens import NOBODY, Tokens

P = ParamSpec("P")
T = TypeVar("T")
CPU = torch.device("cpu")
_LAST = torch.iinfo(torch.int64).max


def remembered_by_tokens(function: Callable[P, T]) -> Callable[P, T]:
    """A decorator for what is made of tokens: the last results are kept, for training too."""

    @remembered(64)
    @wraps(function)
    def made(*args: P.args, **kwargs: P.kwargs) -> T:
        with torch.inference_mode(False):
            return function(*args, **kwargs)

    return made


@final
@dataclass(frozen=True, eq=False)
class Ordering:
    """Place p of row r takes what is in slot ``slots[r, p]``; R is 1 for all rows or one each.

    slots: int64 (R, n), -1 where a place is padding. places: int64 (R, L), the place of each slot,
    -1 where it has none. straight: every slot s is at place s. whole: no place is padding.
    complete: every slot has a place.
    """

    slots: Tensor
    places: Tensor
    straight: bool
    whole: bool
    complete: bool

    @staticmethod
    def of(slots: Tensor, length: int) -> Ordering:
        """From the slot at each place, (R, n), of ``length`` slots."""
        return Ordering._made(slots, _inverse(slots, length))

    @staticmethod
    def placed(places: Tensor, count: int) -> Ordering:
        """From the place of each slot, (R, L), among ``count`` places.

        Raises InvalidArgument for two slots at one place.
        """
        slots = _inverse(places, count)
        if int((slots != NOBODY).sum()) != int((places != NOBODY).sum()):
            raise InvalidArgument(
                "two tokens of a document stand at one position: what is made by position has one "
                "place for them"
            )
        return Ordering._made(slots, places)

    @staticmethod
    def as_it_is(length: int, device: torch.device = CPU) -> Ordering:
        """Every slot at its own place: a graph knows it too."""
        slots = torch.arange(length, device=device)[None]
        return Ordering(slots, slots, True, True, True)

    @staticmethod
    def _made(slots: Tensor, places: Tensor) -> Ordering:
        straight = bool((places == torch.arange(places.shape[1])).all())
        straight = straight and slots.shape[1] >= places.shape[1]
        whole, complete = (not bool((x == NOBODY).any()) for x in (slots, places))
        return Ordering(slots, places, straight, whole, complete)

    @property
    def real(self) -> Tensor:
        """bool (R, n): which places hold a slot."""
        return self.slots != NOBODY

    @cached_property
    def pads(self) -> Tensor:
        """The places of the first row without a slot."""
        return (self.slots[0] == NOBODY).nonzero()[:, 0]

    @cached_property
    def absent(self) -> Tensor:
        """The slots of the first row without a place."""
        return (self.places[0] == NOBODY).nonzero()[:, 0]

    def take(self, x: Tensor, axis: int) -> Tensor:
        """x (B, …, L, …) in order, (B, …, n, …): true zeros, with no gradient, at padding."""
        if not self.straight:
            return _picked(x, self.slots, axis, whole=self.whole)
        missing = self.slots.shape[1] - x.shape[axis]
        # A graph that asks whether any are missing would hold for such lengths only.
        if not traced() and not missing:
            return x
        padded: Tensor = torch.nn.functional.pad(x, (*[0, 0] * (x.dim() - 1 - axis), 0, missing))
        return padded

    def put_back(self, x: Tensor, axis: int) -> Tensor:
        """x (B, …, n, …) from the order to the slots, (B, …, L, …); 0 where a slot has no place."""
        length = self.places.shape[1]
        if self.straight:
            return x if x.shape[axis] == length else x.narrow(axis, 0, length)
        if not x.shape[axis]:
            shape = (*x.shape[:axis], length, *x.shape[axis + 1 :])
            nothing: Tensor = x.sum(axis, keepdim=True).expand(shape)
            return nothing
        return _picked(x, self.places, axis, whole=self.complete)

    def tokens(self, tokens: Tokens) -> Tokens:
        """The tokens of one sequence at their new places."""
        index, real = self.slots[0].clamp(min=0), self.real[0]
        return tokens.mapped(lambda column: torch.where(real, column[index], NOBODY))

    def to(self, device: torch.device) -> Ordering:
        """The same in the memory of a device."""
        moved = self.slots.to(device), self.places.to(device)
        return Ordering(*moved, self.straight, self.whole, self.complete)


def _inverse(places: Tensor, count: int) -> Tensor:
    """Which index (R, L) points to each of ``count`` places, (R, count); -1 where none does."""
    slots = torch.full((len(places), count), NOBODY, device=places.device)
    row, slot = (places != NOBODY).nonzero().unbind(1)
    slots[row, places[row, slot]] = slot
    return slots


def _picked(x: Tensor, index: Tensor, axis: int, *, whole: bool) -> Tensor:
    shape = [1] * x.dim()
    shape[0], shape[axis] = index.shape
    known = index if whole else index.clamp(min=0)
    if len(index) == 1:
        picked = x.index_select(axis, known[0])
    else:
        wide = (*x.shape[:axis], index.shape[1], *x.shape[axis + 1 :])
        picked = x.gather(axis, known.view(shape).expand(wide))
    return picked if whole else picked.masked_fill((index == NOBODY).view(shape), 0.0)


# Sorted tokens: the real ones first, each row's padding at its end.


@remembered_by_tokens
def real_slots(tokens: Tokens, device: torch.device = CPU) -> Tensor | None:
    """bool (R, L), which slots are no padding; None if none is."""
    real = torch.atleast_2d(tokens.host.positions) != NOBODY
    return None if bool(real.all()) else real.to(device)


@remembered_by_tokens
def sorted_by(tokens: Tokens, *names: str, device: torch.device = CPU) -> Ordering:
    """The real tokens of each row by some of their columns, the first one counting most.

    names: of "positions", "documents" and "segments"; a column that tokens do not name is one
    number. Where all are equal, slots keep their order. n is the most real tokens of a row.
    """
    host = tokens.host
    real = torch.atleast_2d(host.positions) != NOBODY
    columns = [getattr(host, name) for name in names]
    keys = [torch.atleast_2d(column) for column in columns if column is not None]
    slots = torch.arange(tokens.length).expand_as(real)
    for key in (*reversed(keys), (~real).long()):
        ranked = key.gather(1, slots)
        if bool((ranked[:, 1:] < ranked[:, :-1]).any()):  # most often they are in order
            slots = slots.gather(1, ranked.argsort(dim=1, stable=True))
    most = int(real.sum(1).max()) if real.numel() else 0
    slots = slots.where(real.gather(1, slots), NOBODY)[:, :most]
    return Ordering.of(slots, tokens.length).to(device)


# Neighbours, and positions counted anew: what is asked of positions within documents.


@remembered_by_tokens
def neighbours(tokens: Tokens, offset: int, device: torch.device = CPU) -> Ordering:
    """Each slot takes the token of its document at its own position + offset, if there is one."""
    host = tokens.host
    position = torch.atleast_2d(host.positions)
    real = position != NOBODY
    named = torch.zeros_like(position) if host.documents is None else host.documents
    own, wanted, _ = _in_one(torch.atleast_2d(named), position, position + offset)
    ordered, slots = torch.where(real, own, _LAST).sort(stable=True, dim=1)
    place = torch.searchsorted(ordered, wanted).clamp(max=max(tokens.length - 1, 0))
    there = real & (ordered.gather(1, place) == wanted)
    return Ordering.of(torch.where(there, slots.gather(1, place), NOBODY), tokens.length).to(device)


def _in_one(document: Tensor, *positions: Tensor) -> list[Tensor]:
    """Documents and positions as one number each, in the order of both, however large they are;
    last, a number that is no more than any of the document's."""
    documents = document.unique(return_inverse=True)[1]
    distinct, dense = torch.stack(positions).unique(return_inverse=True)
    first = documents * len(distinct)
    return [*(first + each for each in dense), first]


class Ranks(NamedTuple):
    """Positions for an encoding: int64, of the shapes of the tokens' positions."""

    query: Tensor
    key: Tensor


def recount(q_tokens: Tokens, k_tokens: Tokens) -> Ranks:
    """A token at position p gets the number of kept keys of its document before p; padding -1.

    A query stands among the keys of its own step, so one attention call with these positions
    equals attention over the kept tokens at positions 0 … m - 1. Deeper layers still differ from
    such a run, since what they kept has seen tokens that are gone. Xiao et al. 2023.
    """
    q, k = q_tokens.positions, k_tokens.positions
    if q_tokens.documents is None or k_tokens.documents is None:
        ordered = torch.where(k == NOBODY, _LAST, k).sort(-1).values
        return Ranks(*(torch.where(x == NOBODY, NOBODY, _rank(x, ordered)) for x in (q, k)))
    flat = torch.cat((q_tokens.documents.flatten(), k_tokens.documents.flatten()))
    split = q.numel(), k.numel()
    own, first = (x.split(split) for x in _in_one(flat, torch.cat((q.flatten(), k.flatten()))))
    ordered = torch.where(k == NOBODY, _LAST, own[1].view(k.shape)).sort(-1).values
    ranks = (
        _rank(a.view(x.shape), ordered) - _rank(b.view(x.shape), ordered)
        for a, b, x in zip(own, first, (q, k), strict=True)
    )
    masked = (torch.where(x == NOBODY, NOBODY, rank) for x, rank in zip((q, k), ranks, strict=True))
    return Ranks(*masked)


def _rank(numbers: Tensor, ordered: Tensor) -> Tensor:
    if ordered.dim() == 2:
        numbers = numbers.expand(ordered.shape[0], -1)
    elif numbers.dim() == 2:
        ordered = ordered.expand(numbers.shape[0], -1)
    return torch.searchsorted(ordered.contiguous(), numbers.contiguous())
