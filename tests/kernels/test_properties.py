"""Every kernel shows every property on every case it does not refuse (acceptance rows 1-9, 13)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from eyeline.exact.dispatch import Kernel
from eyeline.kernels import KERNELS, flex, short, tiles
from eyeline.testing.cases import Case, cases, scored_cases
from eyeline.testing.kernel import PROPERTIES

CASES, SCORED = list(cases()), list(scored_cases())
# On the CPU flex has neither gradients nor float64: test_flex.py checks it in its own way.
COMPLETE = [kernel for kernel in KERNELS if kernel is not flex]


@pytest.mark.parametrize("kernel", COMPLETE, ids=lambda kernel: kernel.NAME)
@pytest.mark.parametrize("holds", PROPERTIES.values(), ids=PROPERTIES.keys())
def test_property(kernel: Kernel, holds: Callable[[Kernel, Case], None]) -> None:
    served = 0
    for case in (*CASES, *(SCORED if kernel in (tiles, short) else SCORED[::3])):
        if kernel.refusal(case.request()) is None:
            served += 1
            try:
                holds(kernel, case)
            except AssertionError as error:
                raise AssertionError(f"{case}: {error}") from error
    assert served >= 20, f"{kernel.NAME} refused nearly everything: {served} cases served"


@pytest.mark.parametrize("holds", PROPERTIES.values(), ids=PROPERTIES.keys())
def test_tiles_without_the_fused_operator(
    holds: Callable[[Kernel, Case], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eyeline.kernels.flash.serves", lambda query, value: False)
    for case in (*CASES[::3], *SCORED[::6]):
        if tiles.refusal(case.request()) is None:
            holds(tiles, case)


@pytest.mark.parametrize("holds", PROPERTIES.values(), ids=PROPERTIES.keys())
def test_tiles_in_small_pieces(
    holds: Callable[[Kernel, Case], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eyeline.budgets.budgets.piece", 20_000)
    for case in CASES[1::4]:
        holds(tiles, case.wide() if case.value_width == 8 else case)
    for case in SCORED[2::6]:
        if tiles.refusal(case.request()) is None:
            holds(tiles, case)
