"""Which cached keys can never be looked at again: sound everywhere, tight for atoms."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eyeline.patterns import (
    Causal,
    Chunks,
    Dilated,
    FixedColumns,
    Full,
    Global,
    Pattern,
    PerHead,
    Sinks,
    Strided,
    Window,
    parse,
    prefix_lm,
    sliding_window,
    streaming,
)  # fmt: skip
from eyeline.planning import dense_mask
from eyeline.tokens import Tokens
from strategies import HEADS, varying_patterns

KEPT: list[tuple[Pattern, int, list[int]]] = [
    (Causal(), 9, list(range(10))),
    (Full(), 9, list(range(10))),
    (sliding_window(3), 8, [6, 7, 8, 9]),
    (sliding_window(1), 8, [8, 9]),
    (streaming(size=3, sinks=2), 8, [0, 1, 6, 7, 8, 9]),
    (Sinks(4), 100, [0, 1, 2, 3]),
    (Window(2, None), 7, [5, 6, 7, 8, 9]),
    (prefix_lm(3), 8, list(range(10))),
    (Causal() & Chunks(4), 8, [8, 9]),
    (Causal() & Chunks(4), 7, [4, 5, 6, 7, 8, 9]),
    (Causal() & ~Sinks(5), 8, [5, 6, 7, 8, 9]),
    (Causal() & Strided(3), 9, list(range(10))),
    (Dilated(2, left=1, right=0), 8, [6, 7, 8, 9]),
    (Causal() & FixedColumns(4, 1), 9, [3, 7]),
    (Causal() & Global([2, 9]), 9, list(range(10))),
    (Causal() & Global([2, 9]), 10, [2, 9]),
]

# The keys that are needed at position t are exactly those that somebody at t or later looks at.
TIGHT = """
    full
    causal
    ~causal
    window(0, 0)
    window(5, 0)
    window(3, 2)
    window(none, 4)
    window(4, none)
    ~window(3, none)
    sinks(0)
    sinks(7)
    ~sinks(7)
    chunks(1)
    chunks(6)
    chunks(5, left=2)
    chunks(5, left=1, right=1)
    chunks(5, left=none)
    chunks(5, left=0, right=none)
    ~chunks(5, left=none)
    strided(1)
    strided(6)
    ~strided(1)
    ~strided(6)
    dilated(3, 3, 0)
    dilated(3, 0, 2)
    dilated(1, 4, 4)
    dilated(4, none, 1)
    dilated(4, 2, none)
    ~dilated(1, none, none)
    fixed_columns(1, 1)
    fixed_columns(7, 2)
    ~fixed_columns(7, 2)
    global(0)
    global(5)
    ~global(5)
    global([0])
    global([3, 4, 17, 31])
    ~global([3, 4, 17, 31])
    grid(6, 7, 0)
    grid(6, 7, 1)
    grid(6, 7, 2)
    blocks([[1, 0], [1, 1]], 21)
    blocks([[0, 0, 0], [1, 0, 1], [0, 1, 0]], 14)
    random(2, 7, 3, 1, 0, 42)
    random(1, 5, 0, 0, 2, 42)
    sliding_window(1)
    sliding_window(9)
    streaming(4, 3)
    prefix_lm(5)
    longformer(3, [0, 11, 30])
    longformer(4, 2)
    causal & longformer(3, [0, 11, 30])
    sparse_transformer(6)
    sparse_transformer(6, kind=fixed)
    sparse_transformer(6, kind=fixed, width=2)
    bigbird(6, 1, 1, 3)
    causal & bigbird(6, 1, 1, 3)
""".strip().split("\n    ")

LENGTH = 42


def looked_at(pattern: Pattern, position: int, horizon: int) -> torch.Tensor:
    """Which keys at 0 … LENGTH - 1 somebody at ``position`` … horizon - 1 looks at."""
    queries = Tokens.arange(position, horizon)
    return dense_mask(pattern, q_tokens=queries, k_tokens=Tokens.arange(0, LENGTH)).any(0)


@pytest.mark.parametrize(("pattern", "at", "kept"), KEPT)
def test_exactly_these_are_kept(pattern: Pattern, at: int, kept: list[int]) -> None:
    needed = pattern.needed(Tokens.arange(0, 10), at)
    assert needed.nonzero()[:, 0].tolist() == kept


@pytest.mark.parametrize("text", TIGHT)
def test_tight(text: str) -> None:
    pattern = parse(text).at(0, 0).of_length(LENGTH)
    for position in range(LENGTH + 9):
        needed = pattern.needed(Tokens.arange(0, LENGTH), position)
        right = looked_at(pattern, position, horizon=4 * LENGTH)
        assert torch.equal(needed, right), f"from {position} on: {(needed != right).nonzero()}"


@settings(max_examples=100, deadline=None)
@given(varying_patterns, st.integers(0, 80))
def test_sound_for_any_expression(pattern: Pattern, position: int) -> None:
    keys = Tokens.arange(0, LENGTH)
    shared = pattern.needed(keys, position)
    for head in range(HEADS):
        own = pattern.at(0, head).of_length(LENGTH)
        looked = looked_at(own, position, horizon=position + 100)
        needed = own.needed(keys, position)
        assert not (looked & ~needed).any()
        assert not (looked & ~shared).any(), "a cache serves all heads"


def test_an_expression_may_keep_more_than_it_needs() -> None:
    # Each member may look at key 3 from 8 on, but at different times: 9 is too far, 8 off stride.
    pattern = Strided(3) & Window(5, 0)
    assert pattern.needed(Tokens.arange(0, 10), 8).nonzero()[:, 0].tolist() == [3, 4, 5, 6, 7, 8, 9]
    assert Dilated(3, 1, 0).needed(Tokens.arange(0, 10), 8).nonzero()[0].item() == 5


def test_heads_share_a_cache() -> None:
    pattern = PerHead([sliding_window(2), streaming(1, 1)])
    needed = pattern.needed(Tokens.arange(0, 6), 6)
    assert needed.nonzero()[:, 0].tolist() == [0, 5]


def test_nobody_is_not_needed() -> None:
    assert Full().needed(Tokens.listed([-1, 0, -1]), 0).tolist() == [False, True, False]


def test_rows_move_at_their_own_pace() -> None:
    keys = Tokens(torch.tensor([[0, 1, 2], [-1, 0, 1]]))
    needed = sliding_window(2).needed(keys, torch.tensor([[3], [2]]))
    assert needed.tolist() == [[False, False, True], [False, False, True]]


def test_any_document_may_come_again() -> None:
    tokens = Tokens.listed([0, 1, 2], [-1, -1, -1])
    assert sliding_window(4).needed(tokens, 3).all()


def test_a_document_may_come_again() -> None:
    tokens = Tokens.packed([3, 3])
    assert Causal().needed(tokens, 6).all()
