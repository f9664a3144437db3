"""Which blocks of keys may be sorted to which, and what each query then sees; content chooses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from eyeline.budgets import at_once, budgets
from eyeline.checks import wide_dtype
from eyeline.tokens import NOBODY, Tokens
from eyeline.tokens.groups import PositionBlocks, position_blocks
from eyeline.tokens.ordering import remembered_by_tokens

# Sinkhorn normalisation: scores to a matrix whose rows and columns sum to 1, causal or not.


_STEP = 32


def balanced(scores: Tensor, may: Tensor, *, iterations: int, causal: bool = False) -> Tensor:
    """P = R (C R)^iterations of exp(scores): R divides rows by their sums, C columns by theirs.

    scores: (B, H, N, N), row i takes, column j is taken. may: bool (B or 1, N, N), the pairs that
    can be; the others are exactly 0. Returns (B, H, N, N), float32 or wider, differentiable. Each
    row that may take something sums to 1; columns do in the limit, where as many may take as be
    taken. This is ``iterations`` rounds of rows and columns, and rows once more.

    causal: C divides entry (i, j) by the sum of its column over the rows up to i, so that no row
    depends on a later one. Row j + 1, the first that may take j, then has all of that column.

    Sums are of float64 where the device has it; a score more than 247 below its row's largest
    counts as 247 below (30 in float32), so that no sum vanishes in rounding. Sinkhorn 1964; Tay et
    al. 2020, "Sparse Sinkhorn Attention".
    """
    count = at_once(2 * scores.shape[-1] ** 2, budgets.numbers)  # of float64
    wide = wide_dtype(scores)
    if not scores.numel():
        return scores.to(wide)
    each = may.expand(scores.shape[0], -1, -1)
    rows = [
        torch.cat([_again(part, some, iterations, causal) for part in row.split(count)])
        for row, some in zip(scores, each, strict=True)
    ]
    return torch.stack(rows).to(wide) if len(rows) > 1 else rows[0].to(wide)[None]


def _again(scores: Tensor, may: Tensor, iterations: int, causal: bool) -> Tensor:
    found: Tensor = _Again.apply(scores, may, iterations, causal)  # type: ignore[no-untyped-call]
    return found


class _Again(torch.autograd.Function):
    """``_balanced``, of which nothing is kept for the backward pass but the scores.

    torch's checkpoint does as much, but imports torch.compile, which takes seconds.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, may: Tensor, iterations: int, causal: bool) -> Tensor:
        ctx.save_for_backward(scores, may)
        ctx.options = iterations, causal
        return _balanced(scores, may, iterations, causal)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        scores, may = ctx.saved_tensors
        twice = torch.is_grad_enabled()
        with torch.enable_grad():
            given = scores if twice else scores.detach().requires_grad_()
            p = _balanced(given, may, *ctx.options)
        return *torch.autograd.grad(p, given, grad, create_graph=twice), None, None, None


def _balanced(scores: Tensor, may: Tensor, iterations: int, causal: bool) -> Tensor:
    """Scores (H, N, N) and may (N, N)."""
    wide = torch.float32 if scores.device.type == "mps" else torch.float64
    known = scores.to(wide).masked_fill(~may, -torch.inf)
    top = known.detach().amax(-1, keepdim=True)
    least = 0.35 * math.log(torch.finfo(wide).tiny)  # 1 / exp(least)² is still finite
    below = (known - top.masked_fill(top == -torch.inf, 0.0)).clamp(min=least)
    p = below.exp().masked_fill(~may, 0.0)
    # Where nothing may be taken, 0 is divided by 1.
    sums = _sums_so_far if causal else _sums
    empty_rows = (~may.any(-1, keepdim=True)).to(wide)
    empty_columns = (sums(may.to(wide)) == 0.0).to(wide)
    p = p * (p.sum(-1, keepdim=True) + empty_rows).reciprocal()
    for _ in range(iterations):
        p = p * (sums(p) + empty_columns).reciprocal()
        p = p * (p.sum(-1, keepdim=True) + empty_rows).reciprocal()
    return p.to(wide_dtype(scores))


def _sums(p: Tensor) -> Tensor:
    """Of each column."""
    return p.sum(-2, keepdim=True)


def _sums_so_far(p: Tensor) -> Tensor:
    """Of each column down to each row."""
    found: Tensor = _SoFar.apply(p, False)  # type: ignore[no-untyped-call]
    return found


class _SoFar(torch.autograd.Function):
    """Sums of columns down to each row, or up to it from below."""

    @staticmethod
    def forward(ctx: Any, p: Tensor, upward: bool) -> Tensor:
        ctx.upward = upward
        # Products with a triangle, some rows at a time, are faster than cumsum.
        step = min(p.shape[-2], _STEP)
        triangle = torch.ones(step, step, dtype=p.dtype, device=p.device)
        triangle = triangle.triu() if upward else triangle.tril()
        out, before = torch.empty_like(p), torch.zeros_like(p[..., :1, :])
        parts = list(zip(p.split(step, -2), out.split(step, -2), strict=True))
        for part, place in reversed(parts) if upward else parts:
            size = part.shape[-2]
            torch.add(triangle[:size, :size] @ part, before, out=place)
            before = place[..., :1, :] if upward else place[..., -1:, :]
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _SoFar.apply(grad, not ctx.upward), None  # type: ignore[no-untyped-call]


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


@remembered_by_tokens
def sorting(q: Tokens, k: Tokens, size: int, causal: bool, device: torch.device) -> Sorting:
    """Raises InvalidArgument for two tokens of a document at one position."""
    asking, keys = position_blocks(q, size), position_blocks(k, size)
    may, own = _may(keys, causal), None if asking is keys else _own(asking, keys)
    real, taken = keys.real, may
    if own is not None:
        real, taken = _at(real, own), _at(may, own)
    band = torch.ones(size, size, dtype=torch.bool)
    near = real[:, :, None] & (band.tril() if causal else band)
    # Whether at an offset a token stands in one of the blocks that can be taken.
    far = (taken.float() @ keys.real.float() > 0)[:, :, None].expand_as(near)
    if causal:  # who stands before all keys of his block may not know by what it takes
        far = far & near.any(-1, keepdim=True)
    mask = torch.cat((near, far), -1)
    blind = ~mask.any(-1)
    lonely = blind & asking.real
    full = keys.real.all(-1)
    return Sorting(
        position_blocks(q, size, device), position_blocks(k, size, device),
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
