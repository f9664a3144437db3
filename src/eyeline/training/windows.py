"""Sequences cut out of long texts, anew in each epoch: a pure function of (seed, step)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, final

import torch
from torch import Tensor

from eyeline.hashing import generator
from eyeline.training.texts import Stretch


@final
class Windows:
    """Windows of ``length`` + ``more`` ids, ``rows`` of them a batch.

    In each epoch every stretch is cut into windows side by side, from an offset drawn anew, and
    all of them are read in an order drawn anew; with more=1, each window begins with the last id
    of the one before, so that each id is predicted once an epoch. count: batches per epoch.
    """

    def __init__(
        self, ids: Tensor, stretches: Sequence[Stretch], *, length: int, rows: int, seed: int
    ) -> None:
        self._ids, self._length, self._seed = ids, length, seed
        sizes = torch.tensor([each.stop - each.start for each in stretches])
        self._starts = torch.tensor([each.start for each in stretches])
        self._windows = torch.where(sizes >= 2 * length, (sizes - length) // length, 1)
        self._slack = (sizes - 1 - self._windows * length).clamp(0, length - 1)
        total = int(self._windows.sum())
        self.rows = min(rows, total)
        self.count = total // self.rows
        self._order = lru_cache(maxsize=1)(self._ordered)

    def at(self, step: int, share: slice = slice(None)) -> Tensor:
        """The batch of step 1, 2, …: int64 (rows, length + 1), or the rows of a share."""
        epoch, index = divmod(step - 1, self.count)
        starts = self._order(epoch)[index * self.rows : (index + 1) * self.rows][share]
        slots = starts[:, None] + torch.arange(self._length + 1)
        return self._ids[slots].long()

    def _ordered(self, epoch: int) -> Tensor:
        """The first slot of every window of an epoch, in the order in which they are read."""
        drawn = generator(self._seed, "windows", epoch)
        offsets = (torch.rand(len(self._slack), generator=drawn) * (self._slack + 1)).long()
        nth = torch.arange(int(self._windows.max())).repeat(len(self._windows), 1)
        inside = nth < self._windows[:, None]
        starts = ((self._starts + offsets)[:, None] + nth * self._length)[inside]
        return starts[torch.randperm(len(starts), generator=drawn)]


class Measured(NamedTuple):
    """A window for measuring: ``length`` tokens from slot ``start``, and as many targets.

    The first ``seen`` targets do not count: they are those of the window before.
    """

    start: int
    length: int
    seen: int


def half_windows(stretches: Sequence[Stretch], *, length: int, most: int) -> list[Measured]:
    """Windows that advance by half a length, so that a token has half a length of context.

    So it is as far as its stretch has that much before it. Each token but a stretch's first is a
    target that counts, once; or, if there are more than ``most`` windows, those of as many, spread
    evenly.
    """
    found: list[Measured] = []
    for each in stretches:
        final = each.stop - 1 - length
        if final <= each.start:
            found.append(Measured(each.start, each.stop - 1 - each.start, 0))
            continue
        starts = [*range(each.start, final, max(1, length // 2)), final]
        found.append(Measured(starts[0], length, 0))
        for before, start in pairwise(starts):
            found.append(Measured(start, length, before + length - start))
    if len(found) <= most:
        return found
    return [found[i * len(found) // most] for i in range(most)]
