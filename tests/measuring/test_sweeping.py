"""Sweeps: what is timed, what is refused, and the memory of processes of their own."""

from __future__ import annotations

import pytest
import torch

from eyeline.errors import InvalidArgument
from eyeline.measuring import Shape, sweep
from eyeline.measuring.peaks import peak_alone, peak_of, peak_resident
from eyeline.measuring.shapes import sdpa_causal, through
from eyeline.patterns import Causal, Global, PerHead, sliding_window

SMALL = Shape(heads=6, dim=5, kv_heads=3, dtype=torch.float64, backward=True)


@pytest.mark.parametrize("backward", [False, True])
def test_both_sides_compute_the_same(backward: bool) -> None:
    shape = Shape(6, 5, 3, torch.float64, backward)
    tensors = shape.tensors(13)
    ours, theirs = shape.run(through(Causal(), "auto"), tensors), shape.run(sdpa_causal, tensors)
    torch.testing.assert_close(ours, theirs)
    assert [x.shape for x in ours] == [x.shape for x in shape.results(13)][: len(ours)] or backward
    held = [tuple(x.shape) for x in shape.results(13)]
    assert held.count((1, 6, 13, 5)) == (3 if backward else 1)
    assert held.count((1, 3, 13, 5)) == (2 if backward else 0)


def test_points_and_cases() -> None:
    found = sweep(SMALL, [131, 67, 67], {"w": sliding_window(7)}, rounds=1, memory=False)
    assert found.lengths == (67, 131) and list(found.baseline_seconds) == [67, 131]
    (case,) = found.cases
    assert (case.label, case.backend, case.peak_bytes) == ("w", "auto", None)
    for point, length in zip(case.points, (67, 131), strict=True):
        assert (point.length, point.pairs) == (length, 21 + 7 * (length - 6))
        assert point.seconds is not None and point.speedup is not None
        assert point.speedup == pytest.approx(found.baseline_seconds[length] / point.seconds)
        assert point.kernel in ("sdpa", "tiles") and point.refusal is None
    assert found.input_bytes == 131 * (6 + 3 + 3) * 5 * 8


def test_a_backend_that_refuses_is_not_replaced() -> None:
    shape = Shape(2, 5)
    found = sweep(
        shape, [67, 521], {"w": sliding_window(7)}, backends=["sdpa"], rounds=1, memory=False
    )
    served, refused = found.cases[0].points
    assert served.kernel == "sdpa" and served.seconds is not None
    assert refused.seconds is None and refused.speedup is None
    assert refused.refusal is not None and "dense mask" in refused.refusal


def test_heads_that_differ_are_counted_by_their_mean() -> None:
    pattern = PerHead([Causal(), sliding_window(7)])
    found = sweep(Shape(2, 5), [67], {"both": pattern}, rounds=1, memory=False)
    assert found.cases[0].points[0].pairs == (67 * 34 + 21 + 7 * 61) // 2


def test_a_pattern_that_does_not_fit_is_refused_before_the_work() -> None:
    fits = sweep(Shape(2, 5), [67], {"global": Global([66])}, rounds=1, memory=False)
    assert fits.cases[0].points[0].pairs == 2 * 67 - 1
    with pytest.raises(InvalidArgument, match="66 lies outside"):
        sweep(Shape(2, 5), [131, 61], {"global": Global([66])}, rounds=1, memory=False)


@pytest.mark.parametrize(
    ("lengths", "backend", "message"),
    [
        ([], "auto", "lengths=.*at least one"),
        ([0], "auto", "length=0: a whole number from 1"),
        ([7], "fast", "fast"),
    ],
)
def test_what_cannot_be_swept(lengths: list[int], backend: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        sweep(SMALL, lengths, {"w": sliding_window(7)}, backends=[backend], memory=False)


def test_heads_that_do_not_divide() -> None:
    with pytest.raises(InvalidArgument, match="8 query heads cannot share 3 key heads"):
        Shape(heads=8, kv_heads=3)
    with pytest.raises(InvalidArgument, match="dim=0"):
        Shape(dim=0)


def test_the_peak_is_that_of_the_kernel_and_not_of_the_arrays() -> None:
    """The reference holds the whole matrix of scores; the tiles do not."""
    shape = Shape(heads=3, dim=8)
    alone = peak_alone(shape, 2053)
    if alone is None:
        assert peak_resident() is None
        return
    matrix = 3 * 2053**2 * 4
    peaks = {
        backend: peak_of(shape, 2053, pattern="sliding_window(31)", backend=backend)
        for backend in ("reference", "tiles")
    }
    assert peaks["reference"] is not None and peaks["reference"] - alone > matrix
    assert peaks["tiles"] is not None and peaks["tiles"] - alone < matrix / 2


def test_a_process_that_fails_measured_nothing() -> None:
    assert peak_of(Shape(2, 5), 521, pattern="sliding_window(7)", backend="sdpa") is None
