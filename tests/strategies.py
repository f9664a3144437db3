"""Random patterns and tokens for property tests."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import strategies as st

from eyeline.patterns import Causal, Chunks, Full, Pattern, SameDocument, Sinks, Window
from eyeline.tokens import Tokens

_width = st.one_of(st.none(), st.integers(0, 40))
atoms = st.one_of(
    st.builds(Full),
    st.builds(Causal),
    st.builds(Window, _width, _width),
    st.builds(Sinks, st.integers(0, 40)),
    st.builds(SameDocument),
    st.builds(Chunks, st.integers(1, 50)),
)


def _combined(inner: st.SearchStrategy[Pattern]) -> st.SearchStrategy[Pattern]:
    pairs = st.tuples(inner, inner)
    return st.one_of(
        pairs.map(lambda p: p[0] & p[1]), pairs.map(lambda p: p[0] | p[1]), inner.map(lambda p: ~p)
    )


patterns = st.recursive(atoms, _combined, max_leaves=5)


@st.composite
def sequences(draw: st.DrawFn, length: int) -> Tokens:
    """One sequence: plain, shifted, packed, or anything at all."""
    kind = draw(st.sampled_from(["plain", "shifted", "padded", "packed", "holes", "anything"]))
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
    positions = st.integers(-1, 2 * length)
    if kind == "holes":
        keep = draw(st.lists(st.booleans(), min_size=length, max_size=length))
        return Tokens(torch.where(torch.tensor(keep, dtype=torch.bool), torch.arange(length), -1))
    return Tokens.listed(
        draw(st.lists(positions, min_size=length, max_size=length)),
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
    if (queries.documents is None) != (keys.documents is None):
        queries, keys = Tokens(queries.positions), Tokens(keys.positions)
    return queries, keys
