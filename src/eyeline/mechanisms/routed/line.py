"""A sequence in line: by document and position, whatever its slots are, with nobody at the end."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import final

import torch
from torch import Tensor

from eyeline.tokens import LARGEST, NOBODY, Tokens


@final
@dataclass(frozen=True, eq=False)
class Line:
    """R rows, one for all batch rows or one each, of S ranks: who comes first, second, …

    slots: int64 (R, S), the slot of each rank. document: int64 (R, S), the number of its
    document in the row, from 0 in the order of the tokens' own numbers; D for nobody.
    sizes: int64 (R, D), how many tokens each document has.
    """

    slots: Tensor
    document: Tensor
    sizes: Tensor

    @property
    def documents(self) -> int:
        """D: the most documents of a row."""
        return self.sizes.shape[1]

    @property
    def longest(self) -> int:
        """The most tokens that a document has."""
        return int(self.sizes.max()) if self.sizes.numel() else 0

    def by_slot(self, x: Tensor) -> Tensor:
        """What documents have, (R, D), for each slot (R, S); the last document's for nobody."""
        last = max(self.documents - 1, 0)
        of_rank = x.gather(1, self.document.clamp(max=last))
        return torch.empty_like(of_rank).scatter_(1, self.slots, of_rank)

    def places(self, size: int) -> Tensor:
        """Ranks put into chunks of ``size`` places, so that each document begins a chunk.

        int64 (R, M): the rank at each place, -1 where there is none.
        """
        taken = (self.sizes + size - 1) // size * size
        shift = (taken.cumsum(1) - taken) - (self.sizes.cumsum(1) - self.sizes)
        row, rank = (self.document < self.documents).nonzero().unbind(1)
        most = int(taken.sum(1).max()) if taken.numel() else 0
        places = torch.full((len(self.slots), most), NOBODY, device=self.slots.device)
        places[row, rank + shift[row, self.document[row, rank]]] = rank
        return places

    def to(self, device: torch.device) -> Line:
        """The same line in the memory of a device."""
        return Line(*(x.to(device) for x in (self.slots, self.document, self.sizes)))


@lru_cache(maxsize=16)
def in_line(tokens: Tokens) -> Line:
    """The tokens of a sequence, in the memory of the CPU. Equal positions stand as their slots."""
    with torch.inference_mode(False):
        host = tokens.host
        position = torch.atleast_2d(host.positions)
        nobody = position == NOBODY
        document = torch.zeros_like(position)
        if host.documents is not None:
            document = torch.atleast_2d(host.documents)
        slots = position.argsort(stable=True)
        document = document.masked_fill(nobody, LARGEST).gather(1, slots)
        document, order = document.sort(stable=True)
        slots = slots.gather(1, order)
        real = document != LARGEST
        new = torch.nn.functional.pad(document[:, 1:] != document[:, :-1], (1, 0)) & real
        number = new.long().cumsum(1)[:, : position.shape[1]]
        most = int(number.max()) + 1 if bool(real.any()) else 0
        sizes = number.new_zeros(len(slots), most + 1)
        number = number.masked_fill(~real, most)
        sizes.scatter_add_(1, number, real.long())
        return Line(slots, number, sizes[:, :most])
