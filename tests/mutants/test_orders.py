"""Planted faults in plans with orders of their own: each must be caught by the shipped suite."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from eyeline import memory
from eyeline.kernels import execute, pieces
from eyeline.patterns import (
    Bounds,
    Causal,
    FixedColumns,
    Global,
    Pattern,
    Strided,
    Window,
)  # fmt: skip
from eyeline.patterns.base import from_tests
from eyeline.planning import layout, orders, palette, parts, peeling
from eyeline.testing import check_pattern
from eyeline.tokens.ordering import Ordering
from mutants.planting import Patch, Plant, Suite, assert_caught

SPARSE = Causal() & (Window(8, 0) | Strided(9))
LISTED = Window(3, 3) | Global([5, 40, 66])


@pytest.fixture(autouse=True)
def orders_cost_nothing(monkeypatch: Patch) -> Iterator[None]:
    """Short sequences are taken apart too; what a mutant made is forgotten."""
    monkeypatch.setattr(parts, "_CALL", 0)
    monkeypatch.setattr(parts, "_PLACE", 0)
    _forget()
    yield
    _forget()


def _forget() -> None:
    memory.clear()


def suite(pattern: Pattern) -> Suite:
    return lambda: check_pattern(pattern, lengths=(17, 67, 131))


def what_another_part_holds_is_held_again(patch: Patch) -> Suite:
    patch.setattr(peeling, "negated", lambda rule: True)
    return suite(SPARSE)


def second_view_sees_the_first_ones_keys(patch: Patch) -> Suite:
    right = Global.views

    def views(self: Global, q: Any, k: Any) -> Any:
        return tuple(view._replace(k_slots=None) if view.q_slots is not None else view
                     for view in right(self, q, k))  # fmt: skip

    patch.setattr(Global, "views", views)
    return suite(LISTED)


def residues_are_not_compared(patch: Patch) -> Suite:
    def verdict(self: Strided, q: Bounds, k: Bounds) -> Tensor:
        some = torch.ones_like(q.min + k.min, dtype=torch.bool)
        known = q.modulus == self.stride and q.residue_min is not None
        return from_tests(full=some & known, some=some)

    patch.setattr(Strided, "verdict", verdict)
    return suite(Strided(9))


def the_last_slot_has_no_place(patch: Patch) -> Suite:
    right = orders._laid

    def laid(*given: Any) -> Tensor:
        found = right(*given)
        return torch.where(found == found.max(), -1, found)

    patch.setattr(orders, "_laid", laid)
    return suite(SPARSE)


def results_are_put_back_in_the_wrong_order(patch: Patch) -> Suite:
    def place(x: Tensor, order: Ordering | None, *, empty: float = 0.0) -> Tensor:
        if order is None or order.slots.shape[1] < x.shape[1]:
            return x
        return x[:, : order.places.shape[1]]

    patch.setattr(pieces, "place", place)
    return suite(SPARSE)


def gradients_of_picked_keys_are_lost(patch: Patch) -> Suite:
    right = execute.add

    def add(x: Tensor, order: Ordering | None, new: Tensor) -> None:
        if order is None or not len(order.absent):
            right(x, order, new)

    patch.setattr(execute, "add", add)
    return suite(LISTED)


def spacing_is_ignored(patch: Patch) -> Suite:
    patch.setattr(
        palette, "_spacing",
        lambda tokens, tile: torch.zeros(-(-tokens.length // tile), dtype=torch.int64),
    )  # fmt: skip
    return suite(Causal() & (Window(20, 0) | FixedColumns(7, 2)))


def gaps_between_solid_pieces_are_filled(patch: Patch) -> Suite:
    right = layout._trimmed

    def trimmed(*given: Any) -> Any:
        found = right(*given)
        return type(found)(**{**vars(found), "masked": torch.zeros_like(found.masked)})

    patch.setattr(layout, "_trimmed", trimmed)
    return suite(Window(5, 5) | Window(30, None))


MUTANTS = [
    what_another_part_holds_is_held_again, second_view_sees_the_first_ones_keys,
    residues_are_not_compared, the_last_slot_has_no_place,
    results_are_put_back_in_the_wrong_order, gradients_of_picked_keys_are_lost,
    spacing_is_ignored, gaps_between_solid_pieces_are_filled,
]  # fmt: skip


@pytest.mark.parametrize("plant", MUTANTS, ids=lambda plant: plant.__name__)
def test_the_suite_catches_it(plant: Plant) -> None:
    assert_caught(plant, _forget)
