"""How a planted fault is tried: what should find it must fail, and must hold without it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Patch = pytest.MonkeyPatch
Suite = Callable[[], None]
Plant = Callable[[Patch], Suite]


def assert_caught(plant: Plant, forget: Callable[[], object] = lambda: None) -> None:
    """``plant`` puts the fault in and gives what should find it. forget: clears what it left."""
    with pytest.MonkeyPatch.context() as patch:
        suite = plant(patch)
        with pytest.raises(AssertionError):
            suite()
    forget()
    suite()  # what failed was the fault, not the suite
