"""block_mask: the plan handed over to FlexAttention, without building the mask.

FlexAttention's index tensors have one row for each row of blocks and as many columns as there are
blocks of keys; only the first few entries of a row mean something, and what follows may be
anything. In large ones a row therefore begins where the entries of the one before it end: they
are overlapping views, and their memory is that of the blocks that are listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, final

import torch
from torch import Tensor

from eyeline.budgets import at_once, budgets
from eyeline.checks import check_size
from eyeline.errors import InvalidArgument
from eyeline.patterns import FULL, PARTIAL, Pattern
from eyeline.planning.dense import described, settled
from eyeline.planning.mask_mods import mask_mod_for
from eyeline.planning.palette import evaluate, palette
from eyeline.planning.parts import Plan
from eyeline.planning.refine import Tiling, pyramid, refine, verdicts
from eyeline.tokens import NOBODY, Points, Tokens

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

# Which blocks of keys each row of blocks looks at: the tiles of a pattern, listed both ways.


@final
@dataclass(frozen=True, eq=False)
class Blocks:
    """Disjoint rectangles of blocks: int64 (N, 4), first row, end row, first column, end column.

    full: every pair of a block is allowed. partial: some are. A block that reaches past the end
    of the sequence is never full, as in FlexAttention.
    """

    full: Tensor
    partial: Tensor


class Listed(NamedTuple):
    """The blocks of each row, one row after the other: counts (rows,), columns (their sum,)."""

    counts: Tensor
    columns: Tensor


def blocks(pattern: Pattern, q: Tokens, k: Tokens, size: int) -> Blocks:
    """The blocks of ``size`` × ``size`` pairs that are not empty, for one sequence and one head.

    Visits tiles that are not EMPTY only. Raises InvalidArgument for more blocks than fit.
    """
    tiling = _down_to(size, pattern, q, k, refine(pattern, q, k, tile=size, largest=size))
    allowed = _allowed(pattern, q, k, tiling)
    row, column = tiling.partial.unbind(1)
    single = torch.stack([row, row + 1, column, column + 1], 1)
    full, ragged = _clipped(tiling.full, q.length, k.length, size)
    found = Blocks(
        full=torch.cat([full, single[allowed == size * size]]),
        partial=torch.cat([ragged, single[(allowed != size * size) & (allowed != 0)]]),
    )
    _check_count(found, pattern, size)
    return found


def listed(rectangles: Tensor, rows: int) -> Listed:
    """The blocks of some rectangles, row by row, each row's columns in order."""
    top, bottom, left, right = rectangles.unbind(1)
    which, row = _spread(top, bottom)
    left, right = left[which], right[which]
    # Rectangles of one row are disjoint: ordered by where they begin, their columns are in order.
    order = (row << 32 | left).argsort()
    row, left, right = row[order], left[order], right[order]
    count = torch.zeros(rows, dtype=torch.int64).index_add(0, row, right - left)
    return Listed(count.int(), _spread(left, right)[1].int())


def transposed(rectangles: Tensor) -> Tensor:
    """The same rectangles with rows and columns exchanged."""
    return rectangles[:, [2, 3, 0, 1]]


def _spread(first: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """For spans first … end - 1, laid end to end: which span, and which number, each entry is."""
    size = end - first
    which = torch.repeat_interleave(size)
    return which, torch.arange(len(which)) + (first - (size.cumsum(0) - size))[which]


def _down_to(size: int, pattern: Pattern, q: Tokens, k: Tokens, tiling: Tiling) -> Tiling:
    """Split on where ``refine`` stopped because nearly all tiles were PARTIAL."""
    if tiling.tile == size:
        return tiling
    rows, columns = pyramid(q, size), pyramid(k, size)
    level = (tiling.tile // size).bit_length() - 1
    full, frontier = [tiling.full << level], tiling.partial
    corner = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    for finer in reversed(range(level)):
        of_rows, of_columns = rows[min(finer, len(rows) - 1)], columns[min(finer, len(columns) - 1)]
        frontier = (2 * frontier[:, None] + corner).view(-1, 2)
        inside = frontier < torch.tensor([len(of_rows), len(of_columns)])
        frontier = frontier[inside.all(1)]
        verdict = verdicts(pattern, of_rows, of_columns, frontier)
        whole = frontier[verdict == FULL]
        full.append(torch.cat([whole, torch.ones_like(whole[:, :1])], 1) << finer)
        frontier = frontier[verdict == PARTIAL]
    return Tiling(size, torch.cat(full), frontier, rows[0], columns[0])


def _allowed(pattern: Pattern, q: Tokens, k: Tokens, tiling: Tiling) -> Tensor:
    """How many pairs each PARTIAL tile really allows; -1 where it was not looked up."""
    masks = palette(pattern, q, k, tiling)
    allowed = torch.where(masks.code > 0, masks.count[masks.code], -1)
    unknown = (masks.code == 0).nonzero()[:, 0]
    if len(unknown) * tiling.tile**2 > budgets.block_pairs:
        return allowed
    for some in unknown.split(at_once(tiling.tile**2, budgets.block_batch)):
        found = evaluate(pattern, q, k, tiling.partial[some], tiling.tile)
        allowed[some] = found.sum((1, 2))
    return allowed


def _clipped(full: Tensor, queries: int, keys: int, size: int) -> tuple[Tensor, Tensor]:
    """FULL squares as rectangles: what lies inside the sequence, and the blocks at its end."""
    row, column, edge = full.unbind(1)
    bottom = (row + edge).clamp(max=-(-queries // size))
    right = (column + edge).clamp(max=-(-keys // size))
    last_row, last_column = queries // size, keys // size
    inner_bottom, inner_right = bottom.clamp(max=last_row), right.clamp(max=last_column)
    inside = torch.stack([row, inner_bottom, column, inner_right], 1)
    below = torch.stack([row.clamp(min=last_row), bottom, column, right], 1)
    beside = torch.stack([row, inner_bottom, column.clamp(min=last_column), right], 1)
    return _kept(inside), _kept(torch.cat([below, beside]))


def _kept(rectangles: Tensor) -> Tensor:
    top, bottom, left, right = rectangles.unbind(1)
    return rectangles[(bottom > top) & (right > left)]


def _check_count(found: Blocks, pattern: Pattern, size: int) -> None:
    both = torch.cat([found.full, found.partial])
    count = int(((both[:, 1] - both[:, 0]) * (both[:, 3] - both[:, 2])).sum())
    if count > budgets.blocks:
        raise InvalidArgument(
            f"{pattern} has {count:,} blocks of {size} × {size} pairs; listing them would take "
            f"about {count * 64 / 2**30:.0f} GiB, and {budgets.blocks:,} are the most: "
            f"a block_size of {2 * size} needs a quarter"
        )


BLOCK = 128


def block_mask(
    rule: Plan | Pattern,
    length: int | None = None,
    key_length: int | None = None,
    *,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
    batch: int | None = None,
    heads: int | None = None,
    block_size: int = BLOCK,
    device: torch.device | str | None = None,
) -> BlockMask:
    """FlexAttention's BlockMask of a plan, or of a pattern for lengths or tokens.

    A block is block_size queries × block_size keys. Blocks without an allowed pair are left out,
    blocks in which all pairs are allowed need no mask, and ``mask_mod`` answers for the others.
    Time is proportional to the blocks that are listed, memory to the rows of blocks times the
    longest of them.

    rule: a Plan brings its pattern and tokens; for a Pattern they are given as for
    ``dense_mask``. batch, heads: B and H, for patterns that differ per row or head. The indices
    have B rows where tokens or pattern differ per row, H heads where the pattern does, else 1.
    device: where the tensors go (the CPU when omitted).

    Equal to ``create_block_mask`` of the same rule, except that blocks whose mask is not known by
    a signature stay partial when there are more than 1,024 (of 128) of them, though all or none
    of their pairs may be allowed: attention is the same, a little slower.

    Raises InvalidArgument for lengths beside a Plan, an empty sequence, a block_size below 1,
    batch or heads that are missing or do not fit, and more blocks than memory allows.
    """
    if isinstance(rule, Plan):
        if any(x is not None for x in (length, key_length, q_tokens, k_tokens)):
            raise InvalidArgument("a plan has its own tokens: give no lengths or tokens beside it")
        pattern, q_tokens, k_tokens = rule.pattern, rule.q_tokens, rule.k_tokens
    else:
        pattern = rule
    q, k = described(pattern, length, key_length, q_tokens, k_tokens)
    _check(pattern, q, k, block_size)
    sizes = _sizes(pattern, q, k, batch, heads)
    place = torch.device(device if device is not None else "cpu")
    # Kept for a backward pass, so never inference tensors; made where plans are made.
    with torch.inference_mode(False), torch.no_grad(), torch.device("cpu"):
        return _made(pattern, q, k, sizes, block_size, place)


def _check(pattern: Pattern, q: Tokens, k: Tokens, block_size: int) -> None:
    check_size("block_size", block_size)
    if not q.length or not k.length:
        raise InvalidArgument(f"a block mask needs queries and keys, got {q.length} and {k.length}")


def _sizes(
    pattern: Pattern, q: Tokens, k: Tokens, batch: int | None, heads: int | None
) -> tuple[int, int]:
    """How many batch rows and heads have indices of their own."""
    rows = {size for size in (q.batch, k.batch, batch) if size is not None}
    if len(rows) > 1:
        raise InvalidArgument(f"batch={batch}, but q_tokens have {q.batch}, k_tokens {k.batch}")
    for name, given in (("batch", rows), ("head", heads)):
        if name in pattern.varies_by and not given:
            raise InvalidArgument(f"{pattern} differs per {name}: say how many there are")
    count = next(iter(rows), 1)
    per_head = heads if heads is not None and "head" in pattern.varies_by else 1
    if pattern.varies_by:
        pattern.check_call(count, per_head)
    per_row = q.batch is not None or k.batch is not None or "batch" in pattern.varies_by
    return count if per_row else 1, per_head


def _made(
    pattern: Pattern,
    q: Tokens,
    k: Tokens,
    sizes: tuple[int, int],
    block_size: int,
    device: torch.device,
) -> BlockMask:
    from torch.nn.attention.flex_attention import BlockMask

    q, k = q.host, k.host
    found = _found(pattern, q, k, sizes, block_size)
    rows, columns = -(-q.length // block_size), -(-k.length // block_size)

    def by_row(rectangles: list[Tensor]) -> tuple[Tensor, Tensor]:
        return _table([listed(x, rows) for x in rectangles], sizes, columns, device)

    def by_column(rectangles: list[Tensor]) -> tuple[Tensor, Tensor]:
        return _table([listed(transposed(x), columns) for x in rectangles], sizes, rows, device)

    partial, full = [each.partial for each in found], [each.full for each in found]
    return BlockMask(
        (q.length, k.length),
        *by_row(partial),
        *by_row(full),
        *by_column(partial),
        *by_column(full),
        BLOCK_SIZE=(block_size, block_size),
        mask_mod=mask_mod_for(pattern, q, k, device),
    )


def _found(
    pattern: Pattern, q: Tokens, k: Tokens, sizes: tuple[int, int], block_size: int
) -> list[Blocks]:
    """The blocks of each batch row and head; those that are asked twice are found once."""
    known: dict[tuple[Pattern, int, int], Blocks] = {}
    found = []
    for row in range(sizes[0]):
        for head in range(sizes[1]):
            queries, keys = q.row(row), k.row(row)
            own = settled(pattern.at(row, head), queries, keys)
            case = (own, id(queries), id(keys))
            if case not in known:
                _check_ends(own, queries, keys)
                known[case] = blocks(own, queries, keys, block_size)
            found.append(known[case])
    return found


def _check_ends(pattern: Pattern, q: Tokens, k: Tokens) -> None:
    """Ask about the outermost positions: a mask that does not reach them raises here, not later
    as a read out of bounds inside a kernel."""
    reals = (t.positions[t.positions != NOBODY] for t in (q, k))
    q_ends, k_ends = (torch.stack(x.aminmax()) if len(x) else x for x in reals)
    q_points, k_points = map(Points.of, (q_ends, k_ends))
    pattern.sees(q_points.unsqueeze(1), k_points.unsqueeze(0))


def _table(
    lists: Sequence[Listed], sizes: tuple[int, int], columns: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """count (B, H, rows) and column (B, H, rows, columns), int32; a large second overlaps."""
    count = torch.stack([each.counts for each in lists])
    whole = count.numel() * columns <= budgets.blocks_laid_out
    width = columns if whole else max(int(count.max()), 1)
    if count.numel() * width > budgets.block_entries:
        raise InvalidArgument(
            f"a table of {count.numel():,} rows of up to {width:,} blocks takes "
            f"{count.numel() * width >> 28} GiB: a larger block_size, or fewer heads and batch rows"
        )
    row = torch.repeat_interleave(count.flatten())
    before = (count.flatten().cumsum(0) - count.flatten()).long()
    place = row * width + torch.arange(len(row)) - before[row]
    storage = torch.zeros(count.numel() * width - width + columns, dtype=torch.int32)
    storage[place] = torch.cat([each.columns for each in lists])
    heads, rows = sizes[1], count.shape[1]
    strides = (heads * rows * width, rows * width, width, 1)
    view = storage.to(device).as_strided((*sizes, rows, columns), strides)
    return count.view(*sizes, rows).to(device), view
