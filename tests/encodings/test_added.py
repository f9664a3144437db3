"""Encodings that are added: against their formulas, number by number."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eyeline.encodings import Added, Learned, Rotary, Sinusoidal
from eyeline.errors import InvalidArgument

POSITIONS = torch.tensor([[0, 3, -1, 2], [-1, -1, 6, 1]])


@pytest.mark.parametrize("base", [10000.0, 31.0])
def test_sines_and_cosines_number_by_number(base: float) -> None:
    table = Sinusoidal(14, base).table(torch.tensor([0, 1, 97, 1_000_003]), dtype=torch.float64)
    assert table.shape == (4, 14)
    for row, i in zip(table.tolist(), (0, 1, 97, 1_000_003), strict=True):
        for j in range(7):
            angle = i / base ** (2 * j / 14)
            assert row[2 * j] == pytest.approx(math.sin(angle), abs=1e-9)
            assert row[2 * j + 1] == pytest.approx(math.cos(angle), abs=1e-9)


def test_angles_are_rounded_last() -> None:
    """In float32 the angle of the fastest pair would be off by 0.03 at a million."""
    got = Sinusoidal(2).table(torch.tensor([1_000_003]), dtype=torch.float32)
    assert float(got[0, 0]) == pytest.approx(math.sin(1_000_003), abs=1e-6)
    assert Sinusoidal(2).table(torch.tensor([3]), dtype=torch.bfloat16).dtype == torch.bfloat16


@given(
    pairs=st.integers(1, 17),
    base=st.floats(1.5, 1e6),
    i=st.integers(0, 5000),
    offset=st.integers(-5000, 5000),
)
def test_an_offset_is_a_rotation(pairs: int, base: float, i: int, offset: int) -> None:
    encoding = Sinusoidal(2 * pairs, base)
    offset = max(offset, -i)
    here, there = encoding.table(torch.tensor([i, i + offset]), dtype=torch.float64)
    turn = encoding.rotation(offset)
    torch.testing.assert_close(turn @ here, there, rtol=0, atol=1e-9)
    unit = torch.eye(2 * pairs, dtype=torch.float64)
    torch.testing.assert_close(turn @ turn.T, unit, rtol=0, atol=1e-12)
    torch.testing.assert_close(turn @ encoding.rotation(-offset), unit, rtol=0, atol=1e-12)


def test_the_rotation_is_that_of_the_offset_alone() -> None:
    assert (Sinusoidal(6).rotation(3) - Sinusoidal(6).rotation(4)).abs().max() > 0.1


def test_learned_rows_are_those_of_the_table() -> None:
    encoding = Learned(7, 5)
    table = encoding(POSITIONS)
    assert table.shape == (2, 4, 5) and table.dtype == torch.float32
    for row, positions in zip(table, POSITIONS.tolist(), strict=True):
        for vector, position in zip(row, positions, strict=True):
            want = encoding.weight[position] if position >= 0 else torch.zeros(5)
            assert torch.equal(vector, want)
    assert encoding.table(POSITIONS, dtype=torch.float64).dtype == torch.float64
    assert 0.01 < Learned(97, 89).weight.std() < 0.03


def test_learned_gradients_count_how_often_a_position_was_used() -> None:
    encoding = Learned(7, 5).double()
    encoding(torch.tensor([[0, 3, -1, 3], [-1, -1, 6, 3]])).sum().backward()
    assert encoding.weight.grad is not None
    assert encoding.weight.grad[:, 0].tolist() == [1, 0, 0, 3, 0, 0, 1]
    torch.autograd.gradcheck(
        lambda w: torch.func.functional_call(encoding, {"weight": w}, (POSITIONS,)),
        encoding.weight,
    )


@pytest.mark.parametrize("position", [7, 10**6])
def test_past_the_table_is_an_error_with_both_numbers(position: int) -> None:
    positions = torch.tensor([2, position, 0])
    with pytest.raises(InvalidArgument, match=rf"position {position}:.* 0? ?.*this table has 7"):
        Learned(7, 5)(positions)
    with pytest.raises(InvalidArgument, match="position -2: they go from -1 to 6"):
        Learned(7, 5)(torch.tensor([-2]))


ENCODINGS = {"sinusoidal": Sinusoidal(6), "learned": Learned(7, 6)}


@pytest.mark.parametrize("name", ENCODINGS)
def test_nothing_is_added_to_nobody(name: str) -> None:
    encoding: Any = ENCODINGS[name]
    table = encoding.table(POSITIONS, dtype=torch.float64)
    assert table.shape == (2, 4, 6) and table.dtype == torch.float64
    there = (POSITIONS >= 0).unsqueeze(-1)
    assert not table.masked_select(~there).any()
    for row in range(2):
        alone = encoding.table(POSITIONS[row].clamp(min=0), dtype=torch.float64)
        assert torch.equal(table[row], torch.where(there[row], alone, 0.0))


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_layer_can_tell_what_is_added_from_what_rotates(name: str) -> None:
    assert isinstance(ENCODINGS[name], Added) and ENCODINGS[name].width == 6
    assert not isinstance(Rotary(6), Added)


@pytest.mark.parametrize("name", ENCODINGS)
def test_graphs_hold_no_break(name: str) -> None:
    def table(positions: torch.Tensor) -> torch.Tensor:
        return ENCODINGS[name].table(positions, dtype=torch.float32)

    whole = torch.compile(table, fullgraph=True, backend="eager", dynamic=True)
    for length in (5, 7):
        torch.testing.assert_close(whole(torch.arange(length)), table(torch.arange(length)))


@pytest.mark.parametrize("name", ENCODINGS)
def test_no_position_at_all(name: str) -> None:
    assert ENCODINGS[name].table(torch.arange(0), dtype=torch.float32).shape == (0, 6)


def test_equal_values_are_equal() -> None:
    assert Sinusoidal(6) == Sinusoidal(6, 10000.0) != Sinusoidal(6, 96.0)
    assert hash(Sinusoidal(6)) == hash(Sinusoidal(6))


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Sinusoidal(7), "sinusoidal width=7: an even number from 2"),
        (lambda: Sinusoidal(0), "sinusoidal width=0"),
        (lambda: Sinusoidal(6, 0.0), "sinusoidal base=0.0"),
        (lambda: Sinusoidal(6, math.inf), "sinusoidal base=inf"),
        (lambda: Sinusoidal(6).table(torch.ones(3), dtype=torch.float32), "int64, got"),
        (lambda: Learned(0, 5), "learned length=0"),
        (lambda: Learned(5, 2.5), "learned width=2.5"),  # type: ignore[arg-type]
        (lambda: Learned(5, True), "learned width=True"),
        (lambda: Learned(5, 5)(torch.ones(3)), r"int64, got torch.float32 \(3,\)"),
    ],
    ids=[
        "odd", "zero", "base", "infinite base", "float positions", "no length", "half a feature",
        "flag", "learned float positions",
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(make: Any, named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        make()
