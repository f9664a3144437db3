"""Pictures: exact for short inputs, right to what they promise for long ones, and quick to read."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from eyeline.errors import InvalidArgument
from eyeline.patterns import (
    EMPTY,
    FULL,
    PARTIAL,
    Causal,
    Chunks,
    Dilated,
    Explicit,
    FixedColumns,
    Full,
    Global,
    Pattern,
    Predicate,
    Sinks,
    Strided,
    Window,
    kept_apart,
    parse,
    sliding_window,
    streaming,
)  # fmt: skip
from eyeline.planning import dense_mask, pairs
from eyeline.planning.pictures import Picture, counted, draw, picture, scanned
from eyeline.testing.kernel import largest_tensor
from eyeline.tokens import Tokens
from strategies import patterns

MILLION = 1_000_000
ATOMS = {
    "full": Full(),
    "causal": Causal(),
    "window": Window(5, 3),
    "sliding_window": sliding_window(31),
    "streaming": streaming(29, 3),
    "chunks": Chunks(37),
    "strided": Causal() & Strided(17),
    "dilated": Dilated(7, 3, 2),
    "fixed_columns": FixedColumns(23, 2) & Causal(),
    "two columns": Sinks(7) & ~Sinks(5) | Window(2, 2),
    "nothing": ~Full(),
}


def by_definition(mask: Tensor, cell: int) -> Tensor:
    """The number of allowed pairs in each cell, cell by cell."""
    rows, columns = (range(0, size, cell) for size in mask.shape)
    return torch.tensor(
        [[int(mask[r : r + cell, c : c + cell].sum()) for c in columns] for r in rows]
    )


def test_a_cell_a_pair() -> None:
    made = picture(sliding_window(3), 5)
    table = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [0, 1, 1, 1, 0], [0, 0, 1, 1, 1]]
    assert made.cell == 1 and made.shares.tolist() == table
    assert made.kinds.tolist() == [[FULL * x for x in row] for row in table]
    assert bool(made.exact.all())


@pytest.mark.parametrize("name", ATOMS)
@pytest.mark.parametrize("size", [(1, 1), (2, 131), (131, 131), (67, 331)])
def test_shares_are_counted(name: str, size: tuple[int, int]) -> None:
    made = picture(ATOMS[name], *size, cells=13)
    mask = dense_mask(ATOMS[name], *size)
    right = by_definition(mask, made.cell)
    assert max(right.shape) <= 13
    assert torch.equal((made.shares * made.areas).round().long(), right)
    assert torch.equal(made.kinds == EMPTY, right == 0)
    assert torch.equal(made.kinds == FULL, right == made.areas)


@pytest.mark.parametrize("name", ATOMS)
@pytest.mark.parametrize("side", [(1, 6), (3, 4), (16, 1), (7, 2)])
@pytest.mark.parametrize("few", [False, True])
def test_scanning_never_loses_a_pair(
    name: str, side: tuple[int, int], few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scanned in full it counts; with little to look at it still knows what it does not know."""
    if few:
        monkeypatch.setattr("eyeline.budgets.budgets.picture_tiles", 64)
        monkeypatch.setattr("eyeline.budgets.budgets.picture_pairs", 256)
    tile, depth = side
    q, k = Tokens.arange(13, 331), Tokens.arange(0, 331)
    found = scanned(ATOMS[name], q, k, tile=tile, depth=depth)
    right = by_definition(dense_mask(ATOMS[name], q_tokens=q, k_tokens=k), tile << depth)
    assert torch.equal(found.pairs[found.exact], right[found.exact].double())
    assert few or bool(found.exact.all())


@given(patterns, st.integers(1, 97), st.integers(1, 9))
def test_any_expression_is_counted(pattern: Pattern, length: int, tile: int) -> None:
    pattern = pattern.of_length(length).at(0, 0)
    tokens = Tokens.arange(0, length)
    right = counted(pattern, tokens, tokens, tile * 4).pairs
    assert torch.equal(scanned(pattern, tokens, tokens, tile=tile, depth=2).pairs, right)


@pytest.mark.parametrize("few", [False, True])
def test_pads_and_documents(few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if few:
        monkeypatch.setattr("eyeline.budgets.budgets.picture_tiles", 16)
    tokens = Tokens.packed([31, 0, 113, 1, 61], length=227)
    pattern = kept_apart(Causal(), tokens, tokens)
    right = by_definition(dense_mask(pattern, q_tokens=tokens, k_tokens=tokens), 16)
    found = scanned(pattern, tokens, tokens, tile=2, depth=3)
    assert torch.equal(found.pairs[found.exact], right[found.exact].double())
    made = picture(pattern, q_tokens=tokens, k_tokens=tokens, cells=15)
    assert torch.equal((made.shares * made.areas).round().long(), right)


LONG = {
    "sliding_window": sliding_window(256),
    "streaming": streaming(512, 4),
    "one diagonal": Window(0, 0),
    "one far diagonal": Window(499_979, None) & ~Window(499_978, None),
    "one column": Global([777_777]),
    "causal": Causal(),
    "chunks of many tiles": Chunks(7872),
}


@pytest.mark.parametrize("name", LONG)
def test_a_million_tokens_are_counted(name: str) -> None:
    made = picture(LONG[name], MILLION)
    assert bool(made.exact.all()), "simple patterns are counted at any length"
    assert max(made.shares.shape) <= 64 and made.cell * len(made.shares) >= MILLION
    assert int((made.shares * made.areas).sum().round()) == pairs(LONG[name], MILLION)


def test_a_diagonal_and_a_column_are_seen_in_every_cell_they_cross() -> None:
    diagonal = picture(Window(0, 0), MILLION)
    assert torch.equal(diagonal.kinds != EMPTY, torch.eye(len(diagonal.kinds)).bool())
    column = picture(Sinks(1), MILLION)
    assert bool((column.kinds[:, 0] == PARTIAL).all()) and not bool(column.kinds[:, 1:].any())
    for made in (diagonal, column):
        lines = draw(made).splitlines()
        assert all("░" in line for line in lines)


ESTIMATED = {
    "strided": (Strided(128), 1 / 128),
    "a wide stride": (Strided(4099), 1 / 4099),
    "fixed_columns": (FixedColumns(101, 7), 7 / 101),
    "predicate": (Predicate(lambda b, h, q, k: (q * 7 + k) % 5 < 2).at(0, 0), 2 / 5),
}


@pytest.mark.parametrize("name", ESTIMATED)
def test_what_cannot_be_counted_is_estimated(name: str) -> None:
    pattern, share = ESTIMATED[name]
    made = picture(pattern, 200_003)
    unsure = ~made.exact
    assert bool(unsure.any()) and bool((made.kinds[unsure] == PARTIAL).all())
    assert float((made.shares * made.areas).sum() / made.areas.sum()) == pytest.approx(
        share, rel=0.1
    )


@pytest.mark.parametrize("length", [1_000_003, 1 << 20])
@pytest.mark.parametrize("columns", [61, 2503])
@pytest.mark.parametrize("side", ["first", "last"])
def test_the_edges_of_what_is_sampled_count_as_much_as_its_middle(
    length: int, columns: int, side: str
) -> None:
    """Under a stride nothing can be decided; first and last columns are met by the samples."""
    edge, place = (Sinks(columns), 0) if side == "first" else (~Sinks(length - columns), -1)
    made = picture(Strided(7919) | edge, length)
    found = (made.shares * made.areas)[:, place].sum()
    rest = made.areas[:, place].sum() / 7919
    assert not bool(made.exact[:, place].all())
    assert float(found) == pytest.approx(columns * length + float(rest), rel=0.1)


def test_what_no_sample_meets_may_still_be_there() -> None:
    """A predicate says nothing of ranges: a single pair in 40 billion is not ruled out."""
    made = picture(Predicate(lambda b, h, q, k: (q == 5) & (k == 7)).at(0, 0), 200_003)
    assert float(made.shares.sum()) == 0 and bool((made.kinds == PARTIAL).all())


def test_documents_are_estimated_too() -> None:
    tokens = Tokens.packed([70_001, 50_021, 80_021])
    pattern = Strided(67)
    made = picture(pattern, q_tokens=tokens, k_tokens=tokens)
    right = pairs(pattern, q_tokens=tokens, k_tokens=tokens)
    assert float((made.shares * made.areas).sum()) == pytest.approx(right, rel=0.1)
    assert int(made.kinds[0, -1]) == EMPTY


def test_estimates_are_the_same_each_time() -> None:
    first, again = (picture(Causal() & Strided(67), 100_003) for _ in range(2))
    assert torch.equal(first.shares, again.shares) and not bool(first.exact.all())


def test_nothing_of_the_square_is_allocated() -> None:
    for pattern in (Strided(128), sliding_window(256) | Global(16)):
        largest = largest_tensor(lambda rule=pattern: picture(rule, MILLION))  # type: ignore[misc]
        assert largest <= 1 << 25


def test_what_cannot_be_drawn() -> None:
    with pytest.raises(InvalidArgument, match="cells=0"):
        picture(Causal(), 5, cells=0)
    with pytest.raises(InvalidArgument, match="per head"):
        picture(Explicit(torch.ones(1, 2, 5, 5, dtype=torch.bool)), 5)
    with pytest.raises(InvalidArgument, match="give a length"):
        picture(Causal())


def test_no_queries_or_no_keys() -> None:
    for made in (picture(Full(), 0, 5), picture(Full(), 5, 0), picture(Full(), 0, 0)):
        assert made.shares.numel() == 0 and isinstance(made.text(), str)


def test_halves() -> None:
    assert draw(picture(Causal(), 5)) == "▏█▄   ▕\n▏███▄ ▕\n▏▀▀▀▀▀▕"


def test_shades() -> None:
    shares = torch.tensor([[0.0, 0.1, 0.4, 0.7, 1.0, 0.999], [0.0, 0.1, 0.4, 0.7, 1.0, 1.0]])
    kinds = torch.where(shares == 0, EMPTY, torch.where(shares == 1, FULL, PARTIAL)).byte()
    made = Picture(shares.double(), kinds, torch.ones_like(kinds).bool(), 20, 60, 10)
    assert draw(made) == "▏ ░▒▓█▓▕"


@pytest.mark.parametrize("length", [1, 63, 64, 65, 127, 129, 5003])
def test_a_drawing_fits(length: int) -> None:
    for count in (7, 64, 192):
        lines = draw(picture(parse("causal"), length, cells=count)).splitlines()
        assert 1 <= len(lines) <= 32 and len({len(line) for line in lines}) == 1
        assert len(lines[0]) <= 66


def test_single_pairs_show_in_a_drawing_of_many() -> None:
    made = picture(Window(0, 0), 1021, cells=192)
    for place, line in enumerate(draw(made).splitlines()):
        shown = [i for i, sign in enumerate(line[1:-1]) if sign != " "]
        assert shown and all(abs(i - 2 * place) <= 2 for i in shown)
