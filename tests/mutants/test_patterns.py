"""Planted faults in the atoms of the sparse literature: each must be caught."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import pytest
import torch
from torch import Tensor

from eyeline import memory
from eyeline.functional import attention
from eyeline.patterns import (
    Blocks,
    Bounds,
    Causal,
    Chunks,
    Dilated,
    FixedColumns,
    Full,
    Global,
    Grid,
    Pattern,
    PerHead,
    Random,
    Strided,
    Window,
)  # fmt: skip
from eyeline.patterns import random_blocks as drawing
from eyeline.patterns.base import from_tests
from eyeline.patterns.random_blocks import Counts
from eyeline.planning import dense_mask
from eyeline.testing import check_pattern
from mutants.planting import Patch, Plant, Suite, assert_caught

LAYOUT = [[1, 0, 0, 1], [1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 1, 1]]
DRAWN = Random(2, 7, head=0, length=131)


def forget() -> None:
    """Plans, masks and draws are remembered; a mutant must not leave its own behind."""
    memory.clear()


@pytest.fixture(autouse=True)
def remembered() -> Iterator[None]:
    forget()
    yield
    forget()


def suite_of(pattern: Pattern) -> Suite:
    return lambda: check_pattern(pattern, lengths=(17, 67, 131))


def chunks_full_one_chunk_early(patch: Patch) -> Suite:
    right = Chunks.verdict
    patch.setattr(
        Chunks, "verdict", lambda self, q, k: right(replace(self, left=self.left + 1), q, k)
    )
    return suite_of(Chunks(11, 1, 0))


def chunks_count_neighbours_from_one(patch: Patch) -> Suite:
    right = Chunks.verdict
    patch.setattr(
        Chunks, "verdict", lambda self, q, k: right(replace(self, right=self.right - 1), q, k)
    )
    return suite_of(Chunks(11, 0, 2))


def strided_misses_the_farthest(patch: Patch) -> Suite:
    def verdict(self: Strided, q: Bounds, k: Bounds) -> Tensor:
        least, most = q.min - k.max, q.max - k.min
        some = most // self.stride * self.stride > least
        return from_tests(full=some & (least == most), some=some)

    patch.setattr(Strided, "verdict", verdict)
    return suite_of(Strided(23) & Causal())


def strided_takes_residues_for_equal(patch: Patch) -> Suite:
    right = Strided.verdict

    def verdict(self: Strided, q: Bounds, k: Bounds) -> Tensor:
        if q.residue_min is None:
            return right(self, q, k)
        return from_tests(full=q.residue_min == q.residue_max, some=q.min == q.min)

    patch.setattr(Strided, "verdict", verdict)

    def suite() -> None:
        start = torch.arange(7)
        some = Bounds(start, start + 70, *[0 * start] * 4, start, start, 7)
        first = Bounds(*(None if x is None else x[:1] for x in some[:8]), 7)  # type: ignore[misc]
        assert Strided(7).verdict(some, first).tolist() == [2, 0, 0, 0, 0, 0, 0]

    return suite


def strided_signature_constant(patch: Patch) -> Suite:
    patch.setattr(Strided, "signature", lambda self, q, k: (0 * (q.min + k.min),))
    return suite_of(Strided(7))


def dilated_without_its_last_neighbour(patch: Patch) -> Suite:
    right = Dilated.verdict
    patch.setattr(
        Dilated, "verdict", lambda self, q, k: right(replace(self, left=self.left - 1), q, k)
    )
    return suite_of(Dilated(5, 9, 0))


def fixed_columns_signature_without_phase(patch: Patch) -> Suite:
    patch.setattr(FixedColumns, "signature", lambda self, q, k: (0 * (q.min + k.min),))
    return suite_of(FixedColumns(7, 2))


def global_columns_only(patch: Patch) -> Suite:
    def verdict(self: Global, q: Bounds, k: Bounds) -> Tensor:
        every, some = self._within(k)
        return from_tests(full=every & (q.min == q.min), some=some & (q.min == q.min))

    patch.setattr(Global, "verdict", verdict)
    return suite_of(Global([9, 40]) | Window(3, 3))


def global_signature_of_keys_only(patch: Patch) -> Suite:
    right = Global.signature
    patch.setattr(Global, "signature", lambda self, q, k: right(self, q, k)[1:])
    return suite_of(Global(9))


def a_layout_summed_one_column_short(patch: Patch) -> Suite:
    right = Blocks.__dict__["_sums"].func
    patch.setattr(Blocks, "_sums", property(lambda self: right(self).roll(1, 1)))
    return suite_of(Blocks(LAYOUT, 33))


def block_signature_without_bits(patch: Patch) -> Suite:
    patch.setattr(Blocks, "_bits", lambda self, row, first, columns: 0 * (row + first))
    return suite_of(Blocks(LAYOUT, 33))


def a_draw_counted_one_row_late(patch: Patch) -> Suite:
    right = Counts.__call__
    patch.setattr(
        Counts, "__call__", lambda self, r0, r1, c0, c1: right(self, r0, r1, c0 + 1, c1 + 1)
    )
    return suite_of(DRAWN)


def a_draw_that_depends_on_the_order_of_calls(patch: Patch) -> Suite:
    right, calls = drawing.seeded, count()
    patch.setattr(drawing, "seeded", lambda *values: right(*values, next(calls)))
    return suite_of(DRAWN)


def a_draw_with_equal_blocks(patch: Patch) -> Suite:
    """Plain draws instead of Floyd's: a block may come twice."""

    def sample(state: Tensor, count: int, population: int) -> list[Tensor]:
        from eyeline.hashing import absorb, below

        return [below(absorb(state, n), population) for n in range(count)]

    patch.setattr(drawing, "sample", sample)

    def suite() -> None:
        blocks = dense_mask(replace(DRAWN, blocks_per_row=5), 131)[::7, ::7]
        assert (blocks.sum(1) == 5).all()

    return suite


def all_heads_draw_the_same(patch: Patch) -> Suite:
    patch.setattr(Random, "at", lambda self, batch, head: replace(self, head=0))

    def suite() -> None:
        first, second = dense_mask(Random(2, 7), 131, batch=1, heads=2)[0]
        assert not torch.equal(first, second)

    return suite


def heads_follow_their_neighbour(patch: Patch) -> Suite:
    patch.setattr(PerHead, "at", lambda self, batch, head: self.members[head - 1].at(batch, head))

    def suite() -> None:
        x = torch.randn(1, 2, 19, 4, generator=torch.Generator().manual_seed(0))
        out = attention(x, x, x, PerHead([Causal(), Full()]))
        alone = attention(x[:, :1], x[:, :1], x[:, :1], Causal())
        assert (out[:, :1] - alone).abs().max() < 1e-5

    return suite


def per_head_full_if_one_is(patch: Patch) -> Suite:
    patch.setattr(
        PerHead, "verdict",
        lambda self, q, k: torch.stack([m.verdict(q, k) for m in self.members]).amax(0),
    )  # fmt: skip

    def suite() -> None:
        x = torch.zeros(1, dtype=torch.int64)
        near, far = Bounds(x, x, *[x] * 4), Bounds(x + 9, x + 9, *[x] * 4)
        assert PerHead([Full(), Window(1, 1)]).verdict(far, near).tolist() == [1]

    return suite


def a_grid_that_does_not_wrap(patch: Patch) -> Suite:
    def areas(self: Grid, x: Bounds) -> object:
        from eyeline.patterns.sparse import _Areas

        begin, end = x.min % self.width, x.max % self.width
        low, high = torch.minimum(begin, end), torch.maximum(begin, end)
        columns = (x.min // self.width, x.max // self.width, low, high, low == low)
        return _Areas(*(column.unsqueeze(-1) for column in columns))

    patch.setattr(Grid, "_areas", areas)
    return suite_of(Grid(11, 12, 2))


def grid_signature_of_rows_only(patch: Patch) -> Suite:
    right = Grid.signature
    patch.setattr(Grid, "signature", lambda self, q, k: right(self, q, k)[:1])
    return suite_of(Grid(11, 12, 2))


MUTANTS = [
    chunks_full_one_chunk_early, chunks_count_neighbours_from_one, strided_misses_the_farthest,
    strided_takes_residues_for_equal, strided_signature_constant,
    dilated_without_its_last_neighbour, fixed_columns_signature_without_phase,
    global_columns_only, global_signature_of_keys_only, a_layout_summed_one_column_short,
    block_signature_without_bits, a_draw_counted_one_row_late,
    a_draw_that_depends_on_the_order_of_calls, a_draw_with_equal_blocks, all_heads_draw_the_same,
    heads_follow_their_neighbour, per_head_full_if_one_is, a_grid_that_does_not_wrap,
    grid_signature_of_rows_only,
]  # fmt: skip


@pytest.mark.parametrize("plant", MUTANTS, ids=lambda plant: plant.__name__)
def test_the_suite_catches_it(plant: Plant) -> None:
    assert_caught(plant, forget)
