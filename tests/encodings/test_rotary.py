"""Rotary encoding against complex multiplication, written out independently."""

from __future__ import annotations

import cmath
from typing import Any

import pytest
import torch

from eyeline.encodings import NTK, Linear, Rotary, YaRN
from eyeline.errors import InvalidArgument


def turned(vector: list[float], position: int, base: float, pairs: list[tuple[int, int]]) -> Any:
    out = list(vector)
    for index, (first, second) in enumerate(pairs):
        angle = position * base ** (-2 * index / len(vector))
        value = complex(vector[first], vector[second]) * cmath.exp(1j * angle)
        out[first], out[second] = value.real, value.imag
    return torch.tensor(out, dtype=torch.float64)


PAIRS = {
    "half": [(j, j + 5) for j in range(5)],
    "interleaved": [(2 * j, 2 * j + 1) for j in range(5)],
}


@pytest.mark.parametrize("layout", PAIRS)
@pytest.mark.parametrize("strided", [False, True])
def test_each_pair_is_multiplied_by_a_complex_number(layout: Any, strided: bool) -> None:
    rotary = Rotary(10, base=31.0, layout=layout)
    positions = torch.tensor([0, 1, 7, 8191, 3])
    x = torch.randn(2, 5, 3, 10, dtype=torch.float64).transpose(1, 2)
    x = x if strided else x.contiguous()
    out = rotary.rotate(x, rotary.tables(positions, dtype=torch.float64))
    for row in range(2):
        for head in range(3):
            for slot, position in enumerate(positions.tolist()):
                want = turned(x[row, head, slot].tolist(), position, 31.0, PAIRS[layout])
                torch.testing.assert_close(out[row, head, slot], want, rtol=0, atol=1e-12)


def test_scores_depend_on_the_difference_of_positions() -> None:
    rotary = Rotary(14)
    q, k = torch.randn(2, 1, 1, 1, 14, dtype=torch.float64)

    def score(i: int, j: int) -> float:
        at = [rotary.tables(torch.tensor([p]), dtype=torch.float64) for p in (i, j)]
        return float((rotary.rotate(q, at[0]) * rotary.rotate(k, at[1])).sum())

    assert score(11, 4) == pytest.approx(score(1011, 1004), abs=1e-10)
    assert score(11, 4) != pytest.approx(score(11, 5), abs=1e-3)


def test_rows_of_a_batch_have_their_own_positions_and_nobody_stands_at_the_start() -> None:
    rotary = Rotary(6)
    positions = torch.tensor([[-1, -1, 0, 1], [0, 1, 2, 3]])
    x = torch.randn(2, 3, 4, 6)
    out = rotary.rotate(x, rotary.tables(positions, dtype=torch.float32))
    for row in range(2):
        alone = rotary.tables(positions[row].clamp(min=0), dtype=torch.float32)
        assert torch.equal(out[row], rotary.rotate(x[row], alone))
    assert torch.equal(out[0, :, :2], x[0, :, :2])


@pytest.mark.parametrize("layout", PAIRS)
def test_features_beyond_the_rotated_ones_stay_as_they_are(layout: Any) -> None:
    rotary, small = Rotary(13, layout=layout, rotated=6), Rotary(6, layout=layout)
    positions = torch.tensor([[0, 5, 19], [-1, 2, 3]])
    x = torch.randn(2, 3, 3, 13).transpose(1, 2)
    out = rotary.rotate(x, rotary.tables(positions, dtype=torch.float32))
    assert torch.equal(out[..., 6:], x[..., 6:])
    want = small.rotate(x[..., :6], small.tables(positions, dtype=torch.float32))
    assert torch.equal(out[..., :6], want)


def test_values_are_equal_and_know_no_device() -> None:
    """Made while a model is built on the meta device, as loading does."""
    with torch.device("meta"):
        rotary = Rotary(6, scaling=YaRN(4.0, 23))
    assert rotary.frequencies.device.type == "cpu"
    assert rotary == Rotary(6, scaling=YaRN(4.0, 23))
    assert hash(rotary) == hash(Rotary(6, scaling=YaRN(4.0, 23)))
    assert rotary != Rotary(6, scaling=YaRN(4.0, 29))


def test_graphs_hold_no_break() -> None:
    rotary = Rotary(6, scaling=Linear(2.0))

    def turn(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return rotary.rotate(x, rotary.tables(positions, dtype=x.dtype))

    whole = torch.compile(turn, fullgraph=True, backend="eager", dynamic=True)
    for length in (5, 7):
        x, positions = torch.randn(1, 2, length, 6), torch.arange(length)
        torch.testing.assert_close(whole(x, positions), turn(x, positions))


def test_far_positions_keep_their_precision() -> None:
    """Angles in float32 would be off by about 0.06 at a million."""
    cos, _ = Rotary(2).tables(torch.tensor([1_000_003]), dtype=torch.float32)
    assert float(cos[0, 0]) == pytest.approx(cmath.exp(1_000_003j).real, abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"head_dim": 7}, "head_dim=7"),
        ({"head_dim": 0}, "head_dim=0"),
        ({"head_dim": 4, "base": 0.0}, "base=0.0"),
        ({"head_dim": 4, "base": float("nan")}, "base=nan"),
        ({"head_dim": 4, "layout": "halves"}, "layout='halves'"),
        ({"head_dim": 4, "rotated": 3}, "rotated=3"),
        ({"head_dim": 4, "rotated": 0}, "rotated=0"),
        ({"head_dim": 4, "rotated": 6}, "rotated=6 of head_dim=4"),
        ({"head_dim": 2, "scaling": NTK(2.0)}, "at least 2 pairs"),
        ({"head_dim": 4, "base": 0.5, "scaling": YaRN(2.0, 8)}, "base above 1, not 0.5"),
    ],
)
def test_what_cannot_be_is_refused_by_name(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        Rotary(**arguments)
