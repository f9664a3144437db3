"""Which slot holds the neighbour at a given distance: what a convolution over positions reads."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from eyeline.errors import NotSupported
from eyeline.tokens import LARGEST, NOBODY, Tokens


class Taps(NamedTuple):
    """slots[t]: int64 (R, L), the neighbours of each slot at the t-th distance, all for R rows.

    there[t]: bool (R, L), whether there is one. real: bool (R, L), who is there. No slots where
    neighbours by position lie as neighbours in the tensor.
    """

    slots: tuple[Tensor, ...]
    there: tuple[Tensor, ...]
    real: Tensor


@lru_cache(maxsize=16)
def taps(tokens: Tokens, offsets: tuple[int, ...], device: torch.device) -> Taps:
    """For each offset the neighbour at position + offset, of the same document.

    Raises NotSupported inside a graph, which does not know where tokens stand.
    """
    if torch.compiler.is_compiling():
        raise NotSupported("a convolution looks up where tokens stand, which a graph does not know")
    with torch.inference_mode(False):
        positions = torch.atleast_2d(tokens.host.positions)
        real = positions != NOBODY
        if tokens.documents is None and _together(positions, real):
            return Taps((), (), real.to(device))
        found = [_neighbours(tokens.host, positions, real, offset) for offset in offsets]
        slots = tuple(slots.to(device) for slots, _ in found)
        return Taps(slots, tuple(there.to(device) for _, there in found), real.to(device))


def _together(positions: Tensor, real: Tensor) -> bool:
    """Whether those who are there stand side by side, each one further than the last."""
    both = real[:, 1:] & real[:, :-1]
    starts = real[:, :1].sum(1) + (real[:, 1:] & ~real[:, :-1]).sum(1)
    return bool((positions.diff(dim=1)[both] == 1).all()) and bool((starts <= 1).all())


def _neighbours(
    tokens: Tokens, positions: Tensor, real: Tensor, offset: int
) -> tuple[Tensor, Tensor]:
    ordered, order = positions.masked_fill(~real, LARGEST).sort(stable=True, dim=1)
    place = torch.searchsorted(ordered, positions + offset).clamp(max=positions.shape[1] - 1)
    there = real & (ordered.gather(1, place) == positions + offset)
    slots = order.gather(1, place)
    if tokens.documents is not None:
        documents = torch.atleast_2d(tokens.documents)
        there &= documents.gather(1, slots) == documents
    return slots, there
