"""Which slot holds the token of a position: tensors put in the order of positions, pads left out.

What belongs to positions, a column of weights or a group of neighbours, must not depend on where
pads lie in a tensor.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument, NotSupported
from eyeline.tokens import LARGEST, NOBODY, Tokens


class Places(NamedTuple):
    """Slots in a new order: place p of row r takes what is in slot ``slots[r, p]``.

    slots: int64 (R, n), R = 1 for all batch rows or one each; None where all stay as they are.
    real: bool (R, n), whether somebody is there; else the place holds 0.
    whole: whether somebody is in every slot that is taken.
    """

    slots: Tensor | None
    real: Tensor
    whole: bool

    def take(self, x: Tensor) -> Tensor:
        """(B, H, S, E) to (B, H, n, E): true zeros, with no gradient, where nobody is."""
        if self.slots is None:
            missing = self.real.shape[1] - x.shape[2]
            # A graph that asks whether any are missing holds for such lengths only.
            whole = not torch.compiler.is_compiling() and not missing
            moved = x if whole else torch.nn.functional.pad(x, (0, 0, 0, missing))
        elif len(self.slots) == 1:
            moved = x.index_select(2, self.slots[0])
        else:
            index = self.slots[:, None, :, None]
            moved = x.gather(2, index.expand(-1, x.shape[1], -1, x.shape[3]))
        if self.whole:
            return moved
        return moved.masked_fill(~self.real[:, None, :, None], 0.0)


@lru_cache(maxsize=16)
def at_positions(tokens: Tokens, limit: int, device: torch.device) -> Places:
    """Place p holds the token that stands at position p; n is 1 + the highest position.

    Raises InvalidArgument for a position from ``limit`` on.
    """
    positions = rows(tokens)
    length = int(positions.max()) + 1 if positions.numel() else 0
    if length > limit:
        raise InvalidArgument(
            f"a key stands at position {length - 1}, and this was made for lengths up to {limit}: "
            "make it with a larger length and train it"
        )
    return _placed(positions, positions, length, device)


def rows(tokens: Tokens) -> Tensor:
    """Where tokens stand, (R, S), in the memory of the CPU: one row for all, or one each."""
    if torch.compiler.is_compiling():
        raise NotSupported(
            "fewer keys are made by looking up where tokens stand, which a graph does not know "
            "before it runs: compile with fullgraph=False, and these layers run as they are"
        )
    positions = tokens.host.positions
    return positions if positions.dim() == 2 else positions[None]


def without_documents(name: str, *tokens: Tokens) -> None:
    """Raise NotSupported for packed documents, which fewer keys would mix."""
    if any(each.documents is not None for each in tokens):
        raise NotSupported(f"{name} sums over keys of several documents: give one document a row")


@lru_cache(maxsize=16)
def in_order(tokens: Tokens, device: torch.device) -> Places:
    """Those who are there, in the order of their positions; n is the most of a row."""
    positions = rows(tokens)
    last = torch.where(positions == NOBODY, positions.new_tensor(LARGEST), positions)
    ranks = last.argsort(stable=True, dim=1).argsort(1)
    most = int((positions != NOBODY).sum(1).max()) if positions.numel() else 0
    return _placed(positions, ranks, most, device)


def all_slots(length: int, device: torch.device) -> Places:
    """All slots as they stand."""
    return Places(None, torch.ones(1, length, dtype=torch.bool, device=device), True)


def everybody(tokens: Tokens) -> bool:
    """Whether somebody is in each slot."""
    return not bool((rows(tokens) == NOBODY).any())


def _placed(positions: Tensor, places: Tensor, length: int, device: torch.device) -> Places:
    """Each token (R, S) at its place (R, S) of ``length``."""
    with torch.inference_mode(False):
        real = torch.zeros(len(positions), length, dtype=torch.bool)
        row, slot = (positions != NOBODY).nonzero().unbind(1)
        place = places[row, slot]
        real[row, place] = True
        if int(real.sum()) != len(row):
            raise InvalidArgument(
                "two tokens of a row stand at one position: fewer keys are made by position"
            )
        if bool((place == slot).all()) and length >= positions.shape[1]:
            return Places(None, real.to(device), len(row) == positions.numel())
        slots = torch.zeros(len(positions), length, dtype=torch.int64)
        slots[row, place] = slot
        return Places(slots.to(device), real.to(device), bool(real.all()))


class Groups(NamedTuple):
    """Neighbours by position, so many to a group: places (R, G · factor), and who a group is.

    tokens: (G,) or (B, G); a group stands at the last of its positions, and is nobody if nobody
    is in it.
    """

    places: Places
    tokens: Tokens
    factor: int
    full: bool

    @property
    def real(self) -> Tensor:
        """Who is there, bool (R, 1, G, factor, 1)."""
        return self.places.real.view(len(self.places.real), 1, -1, self.factor, 1)

    def take(self, x: Tensor) -> Tensor:
        """(B, H, S, E) to (B, H, G, factor, E), 0 where nobody is."""
        taken: Tensor = self.places.take(x).unflatten(2, (-1, self.factor))
        return taken


@lru_cache(maxsize=16)
def grouped(tokens: Tokens, factor: int, device: torch.device) -> Groups:
    """Groups ⌊position / factor⌋, those that have a token, in the order of positions."""
    positions = rows(tokens)
    each = [_group_places(row, factor) for row in positions]
    most = max([len(groups) for groups, _ in each], default=0)
    with torch.inference_mode(False):
        ends = torch.full((len(positions), most), NOBODY)
        for row, (groups, _) in enumerate(each):
            ends[row, : len(groups)] = groups * factor + factor - 1
        places = torch.stack([place for _, place in each])
        standing = Tokens(ends if tokens.batch is not None else ends[0])
    full = bool((positions != NOBODY).all()) and positions.shape[1] == most * factor
    return Groups(_placed(positions, places, most * factor, device), standing, factor, full)


def _group_places(positions: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """The numbers of the groups that somebody is in, (G,), and each token's place in them, (S,)."""
    groups = positions // factor
    found, index = groups.unique(return_inverse=True)
    nobody = int(positions.numel() > 0 and positions.min() == NOBODY)  # -1 // factor comes first
    return found[nobody:], (index - nobody) * factor + positions % factor


@lru_cache(maxsize=16)
def grouped_slots(length: int, factor: int, device: torch.device) -> Groups:
    """``grouped`` for tokens at 0 … length - 1; of nothing but sizes, so that a graph knows it."""
    count = -(-length // factor)
    with torch.inference_mode(False):
        real = (torch.arange(count * factor, device=device) < length)[None]
        ends = torch.arange(1, count + 1, device="cpu") * factor - 1
        full = not torch.compiler.is_compiling() and length % factor == 0
        return Groups(Places(None, real, True), Tokens(ends), factor, full)
