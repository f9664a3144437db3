"""Reading in steps through a cache, under the patterns of the sparse literature."""

from __future__ import annotations

import pytest

from eyeline.caches import Evicting, Growing, needed_slots
from eyeline.patterns import (
    Blocks,
    Causal,
    Chunks,
    Dilated,
    FixedColumns,
    Global,
    Grid,
    Pattern,
    PerHead,
    Random,
    Sinks,
    Strided,
    Window,
    sparse_transformer,
)  # fmt: skip
from eyeline.testing.cache import HEADS, LENGTH, check_cache

CAUSAL = Causal()
LAYOUT = [[1, 0, 1, 0], [1, 1, 0, 0], [0, 1, 1, 0], [1, 0, 0, 1]]
MEMBERS: list[Pattern] = [
    CAUSAL, CAUSAL & Window(3, 0), CAUSAL & Strided(4), CAUSAL & Chunks(7),
    CAUSAL & Sinks(1) | Window(0, 0), CAUSAL & Random(1, 6, length=LENGTH),
]  # fmt: skip
PATTERNS: list[Pattern] = [
    CAUSAL & Strided(3), CAUSAL & Dilated(3, 2, 0), CAUSAL & FixedColumns(5, 2),
    CAUSAL & (Window(2, 0) | Global([0, 9])), CAUSAL & Chunks(5, left=1),
    CAUSAL & Blocks(LAYOUT, 10), CAUSAL & Random(2, 7, head=0, length=LENGTH) | Window(0, 0),
    CAUSAL & (Random(2, 7, length=LENGTH) | Window(0, 0)), CAUSAL & Grid(5, 8, 1),
    sparse_transformer(6), sparse_transformer(6, "fixed", 2), PerHead(MEMBERS),
]  # fmt: skip


@pytest.mark.parametrize("kind", [Growing, Evicting], ids=["growing", "evicting"])
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_steps_equal_one_run(kind: type[Growing] | type[Evicting], pattern: Pattern) -> None:
    assert not isinstance(pattern, PerHead) or len(MEMBERS) == HEADS
    check_cache(kind, pattern)


@pytest.mark.parametrize(
    ("pattern", "slots"),
    [
        (CAUSAL & Dilated(3, 2, 0), 7), (CAUSAL & Strided(3), None),
        (CAUSAL & FixedColumns(5, 2), None), (CAUSAL & Global(3), 4),
        (CAUSAL & (Window(2, 0) | Sinks(2)), 5), (CAUSAL & Chunks(5, left=1), 8),
        (PerHead([CAUSAL & Window(3, 0), CAUSAL & Dilated(2, 4, 0)]), 9),
    ],
    ids=str,
)  # fmt: skip
def test_slots_that_a_long_text_needs(pattern: Pattern, slots: int | None) -> None:
    assert needed_slots(pattern) == slots
