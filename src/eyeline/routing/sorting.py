"""Which blocks of keys may be sorted to which, and what each query then sees; content chooses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, final

import torch
from torch import Tensor

from eyeline.routing.position_blocks import PositionBlocks, position_blocks
from eyeline.tokens import NOBODY, Tokens


@final
@dataclass(frozen=True, eq=False)
class Sorting:
    """Queries in blocks q, N' of them, and keys in blocks k, N of them; R is 1 or the batch.

    own: int64 (R, N'), the block of keys in which a block of queries stands, -1 if no key is there;
    None where they are the same blocks. may: bool (R, N, N), whether block i may take block j: of
    its document, and before it where causal. mask: bool (R, N', size, 2 · size): what a query sees
    of its own block, then of what was sorted there; one that sees nothing is in ``lonely``, bool
    (R, N', size), and sees all in the mask. even: whether all that can be taken are full blocks.
    """

    q: PositionBlocks
    k: PositionBlocks
    own: Tensor | None
    may: Tensor
    mask: Tensor
    lonely: Tensor | None
    even: bool

    @property
    def sees(self) -> Tensor:
        """Who looks at whom: the mask of real queries that look at somebody, for all blocks."""
        there = self.q.real if self.lonely is None else self.q.real & ~self.lonely
        return self.mask & there[..., None]

    @property
    def taken(self) -> Tensor:
        """Which blocks each block of queries may take, bool (R, N', N)."""
        return self.may if self.own is None else _at(self.may, self.own)

    def rows(self, x: Tensor) -> Tensor:
        """What blocks of keys have, (B, H, N, …), for each block of queries, (B, H, N', …)."""
        if self.own is None:
            return x
        index = self.own.clamp(min=0)
        if len(index) == 1:
            return x.index_select(2, index[0])
        shape = (len(index), 1, index.shape[1], *[1] * (x.dim() - 3))
        return x.gather(2, index.view(shape).expand(-1, x.shape[1], -1, *x.shape[3:]))


@lru_cache(maxsize=8)
def sorting(q: Tokens, k: Tokens, size: int, causal: bool, device: torch.device) -> Sorting:
    """Raises InvalidArgument for two tokens of a document at one position."""
    asking, keys = position_blocks(q, size), position_blocks(k, size)
    with torch.inference_mode(False):
        may, own = _may(keys, causal), None if asking is keys else _own(asking, keys)
        real, taken = keys.real, may
        if own is not None:
            real, taken = _at(real, own), _at(may, own)
        band = torch.ones(size, size, dtype=torch.bool)
        near = real[:, :, None] & (band.tril() if causal else band)
        # Whether at an offset somebody stands in one of the blocks that can be taken.
        far = (taken.float() @ keys.real.float() > 0)[:, :, None].expand_as(near)
        if causal:  # who stands before all keys of his block may not know by what it takes
            far = far & near.any(-1, keepdim=True)
        mask = torch.cat((near, far), -1)
        blind = ~mask.any(-1)
        lonely = blind & asking.real
        full = keys.real.all(-1)
        return Sorting(
            asking.to(device), keys.to(device),
            None if own is None else own.to(device), may.to(device),
            _one(mask | blind[..., None]).to(device),
            lonely.to(device) if bool(lonely.any()) else None,
            not bool((taken & ~full[:, None]).any()),
        )  # fmt: skip


class Counts(NamedTuple):
    """Of a head: pairs of blocks that may take, pairs of a query and a place sorted to its block,
    and how often a key is mixed."""

    may: int
    seen: int
    mixed: int


def counts(work: Sorting) -> Counts:
    """What is done for one row."""
    taken = work.taken
    keys = taken.sum(1) * work.k.real.sum(2)
    far = work.sees[..., work.k.size :]
    return Counts(int(work.may.sum()), int(far.sum()), int(keys.sum()))


def reached(work: Sorting) -> tuple[float, float]:
    """Which share of the queries look at somebody, and of the keys may be looked at."""
    sees, real, size = work.sees, work.k.real, work.k.size
    there = work.q.real
    seen = real & (work.taken & there.any(2)[..., None]).any(1)[..., None]
    near = sees[..., :size].any(2).expand(len(seen), -1, -1)
    rows = work.own if work.own is not None else torch.arange(real.shape[1], device=near.device)
    for own, row, some in zip(rows.expand(len(seen), -1), seen, near, strict=True):
        row[own[own != NOBODY]] |= some[own != NOBODY]
    share = [
        float(x.sum() / y.expand_as(x).sum().clamp(min=1))
        for x, y in ((sees.any(-1), there), (seen & real, real))
    ]
    return share[0], share[1]


def _may(keys: PositionBlocks, causal: bool) -> Tensor:
    number, document = keys.numbers, keys.documents
    there = number != NOBODY
    may = (document[:, :, None] == document[:, None]) & there[:, :, None] & there[:, None]
    return may & (number[:, None] < number[:, :, None]) if causal else may


def _own(asking: PositionBlocks, keys: PositionBlocks) -> Tensor:
    same = asking.numbers[:, :, None] == keys.numbers[:, None]
    same = same & (asking.documents[:, :, None] == keys.documents[:, None])
    same = same & (asking.numbers != NOBODY)[:, :, None]
    if not keys.count:
        return same.new_full(same.shape[:2], NOBODY, dtype=torch.int64)
    return same.int().argmax(-1).masked_fill(~same.any(-1), NOBODY)


def _at(x: Tensor, own: Tensor) -> Tensor:
    """Rows of x (R, N, m) for blocks of queries, (R, N', m); all False where no key is."""
    if not x.shape[1]:
        return x.new_zeros(*own.shape, x.shape[2])
    index = own.clamp(min=0)[..., None].expand(-1, -1, x.shape[2])
    return x.expand(len(own), -1, -1).gather(1, index) & (own != NOBODY)[..., None]


def _one(mask: Tensor) -> Tensor:
    """The mask of one block where that of all blocks is the same, and none are empty."""
    if mask.numel() and bool((mask == mask[:1, :1]).all()):
        return mask[:1, :1]
    return mask
