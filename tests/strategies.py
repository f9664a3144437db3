"""Random patterns and tokens for property tests."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from hypothesis import strategies as st

from eyeline.patterns import (
    Blocks,
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
    SameSegment,
    Sinks,
    Strided,
    Window,
)  # fmt: skip
from eyeline.tokens import Tokens

HEADS = 2

_width = st.one_of(st.none(), st.integers(0, 40))
_few = st.one_of(st.none(), st.integers(0, 3))
_size = st.integers(1, 50)
_layouts = st.integers(1, 6).flatmap(
    lambda columns: st.lists(
        st.lists(st.booleans(), min_size=columns, max_size=columns), min_size=1, max_size=6
    )
)


def _random(head: st.SearchStrategy[int | None], length: st.SearchStrategy[int | None]) -> Any:
    """Few enough blocks to exist in a sequence of one token."""
    return st.builds(
        Random, st.integers(0, 1), _size, st.integers(0, 9), st.integers(0, 3), head, length
    )


@st.composite
def _drawn(draw: st.DrawFn) -> Pattern:
    size, blocks = draw(st.integers(1, 40)), draw(st.integers(1, 7))
    length = size * blocks - draw(st.integers(0, size - 1))
    count = draw(st.integers(0, blocks))
    return Random(count, size, seed=draw(st.integers(0, 99)), head=0, length=length)


settled_atoms: tuple[st.SearchStrategy[Pattern], ...] = (
    st.builds(Full),
    st.builds(Causal),
    st.builds(Window, _width, _width),
    st.builds(Sinks, st.integers(0, 40)),
    st.builds(SameSegment),
    st.builds(Chunks, _size, _few, _few),
    st.builds(Strided, _size),
    st.builds(Dilated, st.integers(1, 9), _few, _few),
    _size.flatmap(lambda stride: st.builds(FixedColumns, st.just(stride), st.integers(1, stride))),
    st.builds(Global, st.one_of(st.integers(0, 9), st.lists(st.integers(0, 140), max_size=5))),
    st.builds(Blocks, _layouts, _size),
    st.builds(Grid, st.integers(1, 20), st.integers(1, 20), st.integers(0, 5)),
    _drawn(),
)
"""One strategy for each atom that can be described by numbers, the same in each head."""

atoms = st.one_of(settled_atoms)


def _combined(inner: st.SearchStrategy[Pattern]) -> st.SearchStrategy[Pattern]:
    pairs = st.tuples(inner, inner)
    return st.one_of(
        pairs.map(lambda p: p[0] & p[1]), pairs.map(lambda p: p[0] | p[1]), inner.map(lambda p: ~p)
    )


patterns = st.recursive(atoms, _combined, max_leaves=5)
"""Expressions that hold in every head and row."""

_unsettled = st.one_of(
    _random(st.none(), st.none()),
    _random(st.none(), st.just(140)),
    _random(st.integers(0, 3), st.none()),
    st.lists(patterns, min_size=HEADS, max_size=HEADS).map(PerHead),
)
varying_patterns = st.recursive(st.one_of(atoms, _unsettled), _combined, max_leaves=4)
"""Expressions that may differ per head (of HEADS) and length."""


@st.composite
def sequences(draw: st.DrawFn, length: int) -> Tokens:
    """One sequence: plain, shifted, packed, or anything at all."""
    kind = draw(
        st.sampled_from(["plain", "shifted", "padded", "packed", "segments", "holes", "anything"])
    )
    if kind == "plain":
        return Tokens.arange(0, length)
    if kind == "shifted":
        start = draw(st.integers(0, 70))
        return Tokens.arange(start, start + length)
    if kind == "padded":
        pads = draw(st.integers(0, length))
        return Tokens((torch.arange(length) - pads).clamp(min=-1))
    if kind == "packed":
        cuts = sorted(draw(st.lists(st.integers(0, length), max_size=5)))
        edges = [0, *cuts, length]
        return Tokens.packed([b - a for a, b in pairwise(edges)])
    if kind == "segments":
        numbers = st.lists(st.integers(0, 3), min_size=length, max_size=length)
        return Tokens(torch.arange(length), segments=torch.tensor(draw(numbers)).sort().values)
    positions = st.integers(-1, 2 * length)
    if kind == "holes":
        keep = draw(st.lists(st.booleans(), min_size=length, max_size=length))
        return Tokens(torch.where(torch.tensor(keep, dtype=torch.bool), torch.arange(length), -1))
    return Tokens.listed(
        draw(st.lists(positions, min_size=length, max_size=length)),
        draw(st.lists(st.integers(0, 3), min_size=length, max_size=length)),
        draw(st.lists(st.integers(0, 3), min_size=length, max_size=length)),
    )


lengths = st.sampled_from([1, 2, 3, 7, 31, 63, 64, 65, 101, 131])


@st.composite
def token_pairs(draw: st.DrawFn) -> tuple[Tokens, Tokens]:
    """Queries and keys: the same sequence, its last slots, or two unrelated ones."""
    keys = draw(sequences(draw(lengths)))
    kind = draw(st.sampled_from(["same", "last", "other"]))
    if kind == "same":
        return keys, keys
    if kind == "last":
        return keys.last(draw(st.integers(1, keys.length))), keys
    queries = draw(sequences(draw(lengths)))
    for name in ("documents", "segments"):
        if (getattr(queries, name) is None) != (getattr(keys, name) is None):
            queries, keys = (replace(tokens, **{name: None}) for tokens in (queries, keys))
    return queries, keys
