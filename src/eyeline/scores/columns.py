"""How the pairs of a block read a table of distances: along its diagonals, or one by one.

A row of queries meets the distances of a block as *columns*: entry ``index[m, u]`` of the table is
column u. Where positions go up evenly the distance of pair (i, j) depends on j - i alone, and a
view of the columns whose rows are one element shorter holds the pairs: nothing is gathered.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument

# A curve's table for some distances, checked: one row for all heads, or one for each.


def tabulate(
    curve: Callable[[Tensor], Tensor],
    distances: Tensor,
    heads: int,
    dtype: torch.dtype,
    vector: tuple[int, ...] | None,
) -> Tensor:
    """What the curve gives for int64 distances (D,): (1 or heads, D) or (1 or heads, D, E).

    vector: what must come after (heads, D), () or (E,); None for anything.
    """
    found = curve(distances)
    if not isinstance(found, Tensor):
        raise InvalidArgument(f"a curve gave {found!r}, not a tensor")
    rows, *rest = found.shape if found.dim() > 1 else (0,)
    fits = vector is None or tuple(rest[1:]) == vector
    if rows not in (1, heads) or rest[0] != distances.shape[0] or not fits:
        wanted = (distances.shape[0], *(vector if vector is not None else ()))
        raise InvalidArgument(
            f"a curve gave {tuple(found.shape)} for {len(distances)} distances and {heads} query "
            f"heads: it must be {(1, *wanted)} or {(heads, *wanted)}"
        )
    return found.to(dtype)


class Columns(ABC):
    """The entries of a table that a block of N × R × C pairs reads.

    index: int64 (M, U), the entry of each column; M is 1 where the N blocks read the same.
    """

    index: Tensor

    @abstractmethod
    def add(self, pairs: Tensor, rows: Tensor, *, alpha: float = 1.0) -> Tensor:
        """pairs (N, H, R, C), to each of which alpha · its query's and column's number is added.

        rows: those numbers, (N, H, R, U). In place.
        """

    @abstractmethod
    def collapse(self, pairs: Tensor) -> Tensor:
        """(N, H, R, C) to (N, H, R, U): the sum over the pairs of each query and column."""

    @abstractmethod
    def spread_line(self, line: Tensor) -> Tensor:
        """(M, G, U), one number for each column, to the pairs: (N or 1, G, R, C)."""

    @abstractmethod
    def collapse_line(self, pairs: Tensor) -> Tensor:
        """(N, H, R, C) to (M, H, U): the sum over the pairs of each column."""


@final
class ColumnsOf:
    """Columns for blocks of a sequence, remembered: neighbouring blocks read a table alike.

    q (1, L) and k (1, S): the positions of all slots.
    """

    def __init__(self, q: Tensor, k: Tensor) -> None:
        self._step = _even_step(q, k)
        self._known: dict[tuple[int, ...], Columns] = {}

    def __call__(self, q: Tensor, k: Tensor, first: int, count: int) -> Columns:
        """For positions q (N, R) and k (N, C), and a table of distances first … first + count - 1.

        A distance outside the table reads its nearest entry.
        """
        starts = k[:, :1] - q[:, -1:]
        step = self._step if self._step is not None else _even_step(q, k)
        if step is None:
            return _listed(k[:, None, :] - q[:, :, None], first, count)
        size = q.shape[1], k.shape[1]
        start = int(starts[0])
        if len(starts) > 1 and bool((starts != start).any()):
            return _diagonals(starts, step, size, first, count)
        asked = (start, step, *size, first, count)
        if asked not in self._known:
            self._known[asked] = _diagonals(starts[:1], step, size, first, count)
        return self._known[asked]


def _even_step(q: Tensor, k: Tensor) -> int | None:
    """By how much positions go up from slot to slot, if it is the same everywhere."""
    steps = torch.cat((q.diff(dim=1), k.diff(dim=1)), 1)
    if not steps.numel():
        return 1
    least, most = (int(x) for x in steps.aminmax())
    return least if least == most else None


def _listed(distance: Tensor, first: int, count: int) -> Listed:
    """For distances (N, R, C), whatever they are. Marking entries is faster than sorting."""
    entry = (distance - first).clamp_(0, count - 1)
    occurs = torch.zeros(count, dtype=torch.int64, device=entry.device)
    occurs[entry.flatten()] = 1
    return Listed(occurs.nonzero().T, (occurs.cumsum(0) - 1)[entry])


def _diagonals(
    starts: Tensor, step: int, size: tuple[int, int], first: int, count: int
) -> Diagonals:
    """starts (M, 1): the distances of the last query and the first key."""
    rows, columns = size
    diagonals = rows + columns - 1
    place = starts + step * torch.arange(diagonals) - first
    before, after = _ends(place, count) if step > 0 and len(place) == 1 else (0, 0)
    index = place.clamp(0, count - 1)[:, before : diagonals - after]
    return Diagonals(index, rows, columns, before, after)


def _ends(place: Tensor, count: int) -> tuple[int, int]:
    """How many columns repeat the table's first entry, and its last, apart from one each."""
    before = max(int((place <= 0).sum()) - 1, 0)
    after = max(int((place >= count - 1).sum()) - 1, 0)
    return before, after if count > 1 else 0


@final
@dataclass(frozen=True, eq=False)
class Diagonals(Columns):
    """Column u is the diagonal j - i = u + before - R + 1; the first and last are several ones.

    before, after: how many diagonals more read the entry of the first and of the last column, as
    where distances are clipped.
    """

    index: Tensor
    rows: int
    columns: int
    before: int
    after: int

    def add(self, pairs: Tensor, rows: Tensor, *, alpha: float = 1.0) -> Tensor:
        (left, right), inner = self._sides, self._inner
        pairs[..., :left].add_(rows[..., :1], alpha=alpha)
        pairs[..., self.columns - right :].add_(rows[..., -1:], alpha=alpha)
        skewed = inner._skewed(inner._each_diagonal(rows).contiguous())
        pairs[..., left : self.columns - right].add_(skewed, alpha=alpha)
        return pairs

    def collapse(self, pairs: Tensor) -> Tensor:
        left, right = self._sides
        rows = self._inner._collapsed(pairs[..., left : self.columns - right])
        if left:
            rows[..., :1] += pairs[..., :left].sum(-1, keepdim=True)
        if right:
            rows[..., -1:] += pairs[..., self.columns - right :].sum(-1, keepdim=True)
        return rows

    def spread_line(self, line: Tensor) -> Tensor:
        # Row i reads columns R - 1 - i and on. A view cannot go backwards: this small one is made.
        return self._each_diagonal(line).unfold(-1, self.columns, 1).flip(-2)

    @property
    def _sides(self) -> tuple[int, int]:
        """How many keys, first and last ones, read one same column in every row."""
        return max(self.before - self.rows + 1, 0), max(self.after - self.rows + 1, 0)

    @property
    def _inner(self) -> Diagonals:
        """The block between those keys."""
        left, right = self._sides
        within = self.columns - left - right, self.before - left, self.after - right
        return Diagonals(self.index, self.rows, *within)

    def _collapsed(self, pairs: Tensor) -> Tensor:
        blocks, heads = pairs.shape[:2]
        size = self.rows + self.columns - 1
        rows = pairs.new_empty(blocks, heads, self.rows, size)
        self._skewed(rows).copy_(pairs)
        self._clear_between(rows.view(blocks, heads, -1))
        return self._each_column(rows)

    def collapse_line(self, pairs: Tensor) -> Tensor:
        shared = pairs.sum(0, keepdim=True) if self.index.shape[0] == 1 else pairs
        return self.collapse(shared).sum(-2)

    def _each_diagonal(self, rows: Tensor) -> Tensor:
        """(…, U) to (…, R + C - 1)."""
        if not self.before and not self.after:
            return rows
        ends = rows[..., :1], rows[..., -1:]
        first, last = (
            end.expand(*end.shape[:-1], count)
            for end, count in zip(ends, (self.before, self.after), strict=True)
        )
        return torch.cat((first, rows, last), -1)

    def _each_column(self, rows: Tensor) -> Tensor:
        """(…, R + C - 1) to (…, U), the sums over the diagonals that share an entry."""
        if self.before:
            end = rows[..., : self.before + 1].sum(-1, keepdim=True)
            rows = torch.cat((end, rows[..., self.before + 1 :]), -1)
        if self.after:
            end = rows[..., -self.after - 1 :].sum(-1, keepdim=True)
            rows = torch.cat((rows[..., : -self.after - 1], end), -1)
        return rows

    def _skewed(self, rows: Tensor) -> Tensor:
        """The pairs as a view of (N, H, R, R + C - 1), in which rows are one element shorter."""
        blocks, heads, along = rows.stride()[:3]
        size = (*rows.shape[:3], self.columns)
        start = rows.storage_offset() + self.rows - 1
        return rows.as_strided(size, (blocks, heads, along - 1, 1), start)

    def _clear_between(self, flat: Tensor) -> None:
        """Set to 0 what that view leaves out: before the first row, between rows, at the end."""
        margin = self.rows - 1
        if not margin:
            return
        flat[..., :margin] = 0.0
        flat[..., -margin:] = 0.0
        inner = flat[..., margin:-margin] if margin else flat
        gap = self.rows - 2
        between = inner[..., self.columns :].unfold(-1, gap, gap + self.columns) if gap else None
        if between is not None:
            between.zero_()


@final
@dataclass(frozen=True, eq=False)
class Listed(Columns):
    """Columns are the entries that occur, and every pair knows its own: where, (N, R, C)."""

    index: Tensor
    where: Tensor

    def add(self, pairs: Tensor, rows: Tensor, *, alpha: float = 1.0) -> Tensor:
        return pairs.add_(rows.gather(-1, self._of_heads(rows)), alpha=alpha)

    def collapse(self, pairs: Tensor) -> Tensor:
        rows = pairs.new_zeros(*pairs.shape[:3], self.index.shape[1])
        return rows.scatter_add_(-1, self._of_heads(pairs), pairs)

    def spread_line(self, line: Tensor) -> Tensor:
        return line[0][:, self.where.to(line.device)].transpose(0, 1)

    def collapse_line(self, pairs: Tensor) -> Tensor:
        line = pairs.new_zeros(1, pairs.shape[1], self.index.shape[1])
        where = self.where.to(pairs.device).flatten()
        line[0].index_add_(1, where, pairs.transpose(0, 1).reshape(pairs.shape[1], -1))
        return line

    def _of_heads(self, x: Tensor) -> Tensor:
        return self.where.to(x.device)[:, None].expand(-1, x.shape[1], -1, -1)
