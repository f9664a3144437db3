"""Verdicts, signatures and eviction of every atom against brute force over ``allows``.

Ranges lie anywhere, in natural order and ordered by residue; tiles have gaps.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eyeline.patterns import (
    EMPTY,
    FULL,
    PARTIAL,
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
    Random,
    Sinks,
    Strided,
    Window,
)  # fmt: skip
from eyeline.patterns.base import UNKNOWN
from eyeline.tokens import Points, Tokens
from strategies import patterns, settled_atoms

LAYOUT = [[1, 0, 0, 1, 1], [1, 1, 0, 0, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]
ATOMS: dict[str, Pattern] = {
    str(pattern): pattern
    for pattern in (
        Full(), Causal(), Window(7, 3), Window(None, 5), Window(2, None), Sinks(11), Sinks(0),
        Chunks(7), Chunks(5, 1, 2), Chunks(4, None, 0), Chunks(6, 2, None), Chunks(1, 3, 0),
        Strided(1), Strided(2), Strided(7), Strided(13), Strided(100),
        Dilated(3, 4, 2), Dilated(5, None, 1), Dilated(1, 6, 6), Dilated(7, 0, 0),
        Dilated(4, 2, None), FixedColumns(7, 2), FixedColumns(5, 5), FixedColumns(8, 1),
        Global(0), Global(5), Global([]), Global([3]), Global([0, 17, 18, 19, 44]),
        Blocks(LAYOUT, 7), Blocks(LAYOUT, 13), Blocks([[1]], 64), Blocks([[0, 1, 1]], 3),
        Grid(5, 11, 1), Grid(11, 5, 2), Grid(1, 53, 4), Grid(53, 1, 4), Grid(7, 7, 0),
        Grid(6, 9, 40), Random(2, 7, head=0, length=53), Random(1, 13, head=2, length=50),
        Random(5, 11, head=0, length=55), Random(0, 5, head=0, length=55),
        Random(3, 5, seed=4, head=1, length=23),
    )
}  # fmt: skip
# Joined rules may say PARTIAL where they could say more.
EXACT = [name for name in ATOMS if not name.startswith("dilated")]
FAR = 400


def rectangle(pattern: Pattern, q: Tensor, k: Tensor) -> Tensor:
    """allows for positions (…, a) and (…, b): bool (…, a, b)."""
    rows, columns = q.unsqueeze(-1), k.unsqueeze(-2)
    mask = pattern.allows(Points.of(rows), Points.of(columns))
    return mask.expand(torch.broadcast_shapes(rows.shape, columns.shape))


def bounds(positions: Tensor, modulus: int | None = None) -> Bounds:
    """What is known of some positions, the last dimension being a range."""
    least, most = positions.amin(-1), positions.amax(-1)
    zero = torch.zeros_like(least)
    if modulus is None:
        return Bounds.of_positions(least, most)
    residue = positions % modulus
    return Bounds(least, most, zero, zero, zero, zero, residue.amin(-1), residue.amax(-1), modulus)


def ranges(count: int, end: int, generator: torch.Generator) -> list[tuple[int, int]]:
    edges = torch.randint(0, end, (count, 2), generator=generator).sort(1).values
    return [(first, last + 1) for first, last in edges.tolist()]


@pytest.mark.parametrize("name", ATOMS)
def test_verdicts_of_ranges(name: str) -> None:
    pattern, generator = ATOMS[name], torch.Generator().manual_seed(len(name))
    mask = rectangle(pattern, torch.arange(61), torch.arange(61))
    for (q0, q1), (k0, k1) in zip(
        ranges(300, 61, generator), ranges(300, 61, generator), strict=True
    ):
        block = mask[q0:q1, k0:k1]
        right = FULL if block.all() else PARTIAL if block.any() else EMPTY
        said = int(pattern.verdict(bounds(torch.arange(q0, q1)), bounds(torch.arange(k0, k1))))
        if name in EXACT:
            assert said == right, (q0, q1, k0, k1)
        assert said in (PARTIAL, right), (q0, q1, k0, k1)


@pytest.mark.parametrize("name", EXACT)
def test_verdicts_broadcast(name: str) -> None:
    """Rows of ranges against columns of ranges, and one range against many."""
    pattern, generator = ATOMS[name], torch.Generator().manual_seed(1)
    ends = torch.randint(0, 61, (2, 5, 2), generator=generator).sort(-1).values
    q, k = (Bounds.of_positions(*x.unbind(-1)) for x in ends)
    column = Bounds(*(x[:, None] for x in q[:6]))
    table = pattern.verdict(column, k)
    assert table.shape == (5, 5)
    for i in range(5):
        one = Bounds(*(x[i] for x in q[:6]))
        assert torch.equal(pattern.verdict(one, k), table[i])
        assert torch.equal(
            pattern.verdict(k, one),
            pattern.verdict(Bounds(*(x[:, None] for x in k[:6])), one)[:, 0],
        )


def _some_by_residue(modulus: int, generator: torch.Generator, end: int = 90) -> Tensor | None:
    """Some positions of neighbouring residues within a range."""
    low, high = torch.randint(0, modulus, (2,), generator=generator).sort().values.tolist()
    first, last = torch.randint(0, end, (2,), generator=generator).sort().values.tolist()
    inside = torch.arange(first, last + 1)
    inside = inside[(inside % modulus >= low) & (inside % modulus <= high)]
    kept = inside[torch.rand(len(inside), generator=generator) < 0.6]
    return kept if len(kept) else None


@pytest.mark.parametrize("name", ATOMS)
def test_verdicts_of_ranges_ordered_by_residue(name: str) -> None:
    pattern, generator = ATOMS[name], torch.Generator().manual_seed(7)
    widths = [2, 3, 5, 7, 9, 11, 13, 14, 26]
    for number in range(500):
        modulus = widths[number % len(widths)]
        other = modulus if number % 5 else widths[number % 7]
        q, k = _some_by_residue(modulus, generator), _some_by_residue(other, generator)
        if q is None or k is None:
            continue
        block = rectangle(pattern, q, k)
        said = int(pattern.verdict(bounds(q, modulus), bounds(k, other)))
        assert said != EMPTY or not block.any(), (q, k, modulus, other)
        assert said != FULL or block.all(), (q, k, modulus, other)


def test_residues_decide_a_stride() -> None:
    """Once tokens are ordered by residue, tiles of one residue each are never in doubt."""
    for pattern in (Strided(7), Dilated(7, None, None)):
        for a in range(7):
            for b in range(7):
                q, k = torch.arange(a, 90, 7), torch.arange(b, 90, 7)
                said = int(pattern.verdict(bounds(q, 7), bounds(k, 7)))
                assert said == (FULL if a == b else EMPTY)


def _tiles(starts: int, gap: int, tile: int) -> Tensor:
    return torch.arange(starts)[:, None] + gap * torch.arange(tile)


def check_signature(pattern: Pattern, q: Tensor, k: Tensor) -> int:
    """Equal signatures of PARTIAL tiles mean equal masks; returns how many tiles had one."""
    q_index, k_index = torch.cartesian_prod(torch.arange(len(q)), torch.arange(len(k))).unbind(1)
    q, k = q[q_index], k[k_index]
    verdict = pattern.verdict(bounds(q), bounds(k)).expand(len(q))
    signature = pattern.signature(bounds(q), bounds(k))
    if signature is None:
        return 0
    table = torch.stack([column.expand(len(q)) for column in signature], 1)
    chosen = ((verdict == PARTIAL) & (table != UNKNOWN).all(1)).nonzero()[:, 0]
    if not len(chosen):
        return 0
    masks = rectangle(pattern, q[chosen], k[chosen]).flatten(1)
    _, group = table[chosen].unique(dim=0, return_inverse=True)
    first = torch.full((int(group.max()) + 1,), len(chosen)).scatter_reduce(
        0, group, torch.arange(len(chosen)), "amin"
    )
    wrong = (masks != masks[first[group]]).any(1).nonzero()[:, 0]
    assert not len(wrong), (q[chosen[wrong[0]]], k[chosen[wrong[0]]])
    return len(chosen)


@pytest.mark.parametrize("name", ATOMS)
def test_signatures_of_tiles_with_gaps(name: str) -> None:
    pattern = ATOMS[name]
    for q_gap, k_gap, tile in ((1, 1, 4), (1, 1, 9), (2, 2, 4), (7, 7, 3), (1, 3, 5), (5, 1, 6)):
        check_signature(pattern, _tiles(37, q_gap, tile), _tiles(41, k_gap, tile))


@settings(max_examples=60)
@given(patterns, st.integers(1, 4), st.integers(1, 4), st.integers(1, 7))
def test_signatures_of_expressions(pattern: Pattern, q_gap: int, k_gap: int, tile: int) -> None:
    check_signature(pattern, _tiles(23, q_gap, tile), _tiles(29, k_gap, tile))


@pytest.mark.parametrize(
    "pattern",
    [
        Blocks(LAYOUT, 7), Random(2, 7, head=0, length=53), Grid(5, 11, 1), Strided(7),
        FixedColumns(7, 2), Global([3]), Chunks(5, 1, 2),
    ],
    ids=str,
)  # fmt: skip
def test_signatures_are_known_where_they_are_cheap(pattern: Pattern) -> None:
    assert check_signature(pattern, _tiles(37, 1, 9), _tiles(37, 1, 9)) > 100


@pytest.mark.parametrize("name", ATOMS)
@pytest.mark.parametrize("causal", [False, True], ids=["both sides", "causal"])
def test_keys_are_kept_exactly_as_long_as_they_are_needed(name: str, causal: bool) -> None:
    pattern = Causal() & ATOMS[name] if causal else ATOMS[name]
    queries, keys = torch.arange(FAR), torch.arange(61)
    mask = rectangle(pattern, queries, keys)
    # later[t, j]: some query at t or later looks at j.
    later = mask.flip(0).cummax(0).values.flip(0)
    for at in range(75):
        needed = pattern.needed(Tokens(keys), at)
        lost = (later[at] & ~needed).nonzero()[:, 0].tolist()
        assert not lost, f"at {at} the keys {lost} are evicted, but looked at"
        if not causal or at >= 61:  # before, a causal key may lie ahead of its atom's range
            idle = (needed & ~later[at]).nonzero()[:, 0].tolist()
            assert not idle, f"at {at} the keys {idle} are kept for nobody"


@pytest.mark.parametrize("index", range(len(settled_atoms)), ids=str)
@settings(max_examples=25)
@given(st.data())
def test_any_atom_has_sound_verdicts(index: int, data: st.DataObject) -> None:
    pattern = data.draw(settled_atoms[index])
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    mask = rectangle(pattern, torch.arange(150), torch.arange(150))
    for (q0, q1), (k0, k1) in zip(
        ranges(20, 150, generator), ranges(20, 150, generator), strict=True
    ):
        block = mask[q0:q1, k0:k1]
        said = int(pattern.verdict(bounds(torch.arange(q0, q1)), bounds(torch.arange(k0, k1))))
        assert said != EMPTY or not block.any(), (q0, q1, k0, k1)
        assert said != FULL or block.all(), (q0, q1, k0, k1)
