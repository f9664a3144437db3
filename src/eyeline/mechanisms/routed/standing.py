"""Who stands in a row: the slots of each document in the order of positions, pads left out."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from eyeline.mechanisms.routed.line import in_line
from eyeline.tokens import Tokens


class Stretch(NamedTuple):
    """A document's number, and where its slots begin and end in ``Standing.slots``."""

    document: int
    start: int
    stop: int


class Standing(NamedTuple):
    """The slots of one row where somebody is, int64 (n,), by document and then by position.

    whole: whether these are all slots, in their own order.
    """

    slots: Tensor
    documents: tuple[Stretch, ...]
    whole: bool

    @property
    def size(self) -> int:
        """n: how many stand here."""
        return self.slots.shape[0]

    def take(self, x: Tensor, dim: int) -> Tensor:
        """What those who stand here have of x, which has a place for each slot along ``dim``."""
        return x if self.whole else x.index_select(dim, self.slots)

    def shares(self, total: int) -> list[int]:
        """⌈total · n_d / n⌉ for each document of n_d tokens, and no more than n_d."""
        sizes = [each.stop - each.start for each in self.documents]
        return [min(-(-total * size // self.size), size) for size in sizes]


@lru_cache(maxsize=64)
def standing(tokens: Tokens, device: torch.device) -> Standing:
    """Who stands where in the ``Line`` of one batch row's tokens."""
    line = in_line(tokens)
    sizes = line.sizes[0]
    with torch.inference_mode(False):
        slots = line.slots[0, : int(sizes.sum())]
        stops = sizes.cumsum(0)
        starts = stops - sizes
        documents = tokens.host.documents
        names = torch.zeros_like(starts) if documents is None else documents[slots[starts]]
        stretches = zip(names.tolist(), starts.tolist(), stops.tolist(), strict=True)
        every = torch.arange(line.slots.shape[1])
        whole = slots.shape == every.shape and torch.equal(slots, every)
        return Standing(slots.to(device), tuple(Stretch(*each) for each in stretches), whole)
