"""Planted faults in the core: each must be caught by the suite that we ship.

A mutant that survives means that the suite looks away from a kind of bug that this field has.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from eyeline import memory
from eyeline.exact.dispatch import Kernel
from eyeline.kernels import execute, flash, product, tiles
from eyeline.kernels.request import Request
from eyeline.patterns import (
    Bounds,
    Causal,
    Chunks,
    Full,
    Not,
    Or,
    Pattern,
    SameSegment,
    Sinks,
    Window,
    sliding_window,
    streaming,
)  # fmt: skip
from eyeline.patterns.base import from_tests
from eyeline.planning import Gathered, Run, Slab, plan
from eyeline.planning.parts import Plan, Reordered
from eyeline.testing import check_kernel, check_pattern
from eyeline.testing.cases import Case, cases
from eyeline.testing.kernel import PROPERTIES
from eyeline.tokens import default_tokens
from mutants.planting import Patch, Plant, Suite, assert_caught


@pytest.fixture(autouse=True)
def forget_plans() -> Any:
    """Plans are remembered; a mutant must not leave its own behind."""
    memory.clear()
    yield
    memory.clear()


def pattern_suite(pattern: Pattern) -> Suite:
    return lambda: check_pattern(pattern, lengths=(17, 67, 131))


def window_verdict_off_by_one(patch: Patch) -> Suite:
    def verdict(self: Window, q: Bounds, k: Bounds) -> Tensor:
        least, most = q.min - k.max, q.max - k.min
        left = (self.left or 0) + 1
        return from_tests(full=(most <= left) & (least >= 0), some=(least <= left) & (most >= 0))

    patch.setattr(Window, "verdict", verdict)
    return pattern_suite(Window(30, 0))


def causal_full_one_key_early(patch: Patch) -> Suite:
    patch.setattr(
        Causal, "verdict",
        lambda self, q, k: from_tests(full=k.max <= q.min + 1, some=k.min <= q.max),
    )  # fmt: skip
    return pattern_suite(Causal())


def sinks_empty_one_key_early(patch: Patch) -> Suite:
    patch.setattr(
        Sinks, "verdict",
        lambda self, q, k: from_tests(
            full=(k.max < self.count - 1) & (q.min == q.min), some=k.min < self.count - 1
        ),
    )  # fmt: skip
    return pattern_suite(Sinks(17))


def or_planned_as_and(patch: Patch) -> Suite:
    patch.setattr(
        Or, "verdict", lambda self, q, k: self._fold(lambda m: m.verdict(q, k), torch.minimum)
    )
    return pattern_suite(streaming(9, 3))


def not_keeps_the_verdict(patch: Patch) -> Suite:
    patch.setattr(Not, "verdict", lambda self, q, k: self.inner.verdict(q, k))
    return pattern_suite(~Causal())


def documents_full_across_an_edge(patch: Patch) -> Suite:
    patch.setattr(
        SameSegment, "verdict",
        lambda self, q, k: from_tests(
            full=(q.segment_min == k.segment_min), some=q.segment_min <= k.segment_max
        ),
    )  # fmt: skip
    return pattern_suite(SameSegment())


def chunks_signature_without_its_phase(patch: Patch) -> Suite:
    patch.setattr(
        Chunks, "signature", lambda self, q, k: (q.min // self.size - k.min // self.size,)
    )
    return pattern_suite(Chunks(37))


def window_signature_constant(patch: Patch) -> Suite:
    patch.setattr(Window, "signature", lambda self, q, k: (0 * (q.min + k.min),))
    return pattern_suite(Window(22, 0))


def needed_one_key_early(patch: Patch) -> Suite:
    right = Pattern.needed
    patch.setattr(Pattern, "needed", lambda self, keys, at: right(self, keys, at + 1))
    return pattern_suite(sliding_window(5))


def nobody_is_full(patch: Patch) -> Suite:
    """Nobody made visible by ~: the planner forgets that a tile holds an empty slot."""

    def verdicts(pattern: Pattern, rows: Any, columns: Any, index: Tensor) -> Tensor:
        q, k = rows.take(index[:, 0]), columns.take(index[:, 1])
        return pattern.verdict(q.bounds, k.bounds).broadcast_to(index.shape[:1])

    patch.setattr("eyeline.planning.refine.verdicts", verdicts)
    return pattern_suite(Full())


def nobody_in_a_mask(patch: Patch) -> Suite:
    def mask(self: Plan, q0: int, rows: int, k0: int, columns: int) -> Tensor:
        q, k = self.q_tokens.points(axis=-2), self.k_tokens.points(axis=-1)
        rows_of = type(q)(*(x[q0 : q0 + rows] for x in q))
        return self.pattern.allows(rows_of, type(k)(*(x[:, k0 : k0 + columns] for x in k)))

    patch.setattr(Plan, "mask", mask)
    return kernel_suite("left pads, not causal", "middle pads, causal")


def kernel_suite(*names: str) -> Suite:
    """Every property of the tile kernel on the named cases, or on all of them.

    Once it has failed, only what failed: without a fault, all of them hold in kernels/.
    """
    chosen = [case for case in cases() if not names or case.name in names]
    assert len(chosen) >= len(names)
    tried = [(holds, case) for case in chosen for holds in PROPERTIES.values()]

    def suite() -> None:
        for holds, case in tried.copy():
            try:
                holds(tiles, case)
            except AssertionError:
                tried[:] = [(holds, case)]
                raise

    return suite


def delta_is_a_hundredth_short(patch: Patch) -> Suite:
    right = flash.backward
    patch.setattr(
        flash, "backward",
        lambda grad, q, k, v, out, *rest: right(grad, q, k, v, out * 0.99, *rest),
    )  # fmt: skip
    return kernel_suite("causal, L=S=67")


def plain_delta_is_a_hundredth_short(patch: Patch) -> Suite:
    right = product.backward
    patch.setattr(
        product, "backward",
        lambda grad, lse, q, k, v, out, *rest: right(grad, lse, q, k, v, out * 0.99, *rest),
    )  # fmt: skip
    patch.setattr(flash, "serves", lambda query, value: False)
    return kernel_suite("causal, L=S=67")


def lse_of_an_empty_row_is_zero(patch: Patch) -> Suite:
    def forward(q: Tensor, k: Tensor, v: Tensor, mask: Any, scale: float, bias: Any) -> Any:
        added = flash._additive(mask, bias, q)
        assert flash._FORWARD is not None
        return flash._FORWARD(q, k, v, 0.0, False, attn_mask=added, scale=scale)

    patch.setattr(flash, "forward", forward)
    return kernel_suite("explicit", "packed with a rest, causal")


def parts_overwrite_each_other(patch: Patch) -> Suite:
    def merge(piece: Any, out: Tensor, lse: Tensor, new_out: Tensor, new_lse: Tensor) -> None:
        piece.put_queries(out, new_out)
        piece.put_queries(lse, new_lse)

    patch.setattr(execute, "_merge", merge)
    return kernel_suite("a run and a slab")


def parts_merge_with_equal_shares(patch: Patch) -> Suite:
    def merge(piece: Any, out: Tensor, lse: Tensor, new_out: Tensor, new_lse: Tensor) -> None:
        piece.put_queries(out, (piece.queries(out) + new_out) / 2)
        piece.put_queries(lse, torch.logaddexp(piece.queries(lse), new_lse))

    patch.setattr(execute, "_merge", merge)
    return kernel_suite("a run and a slab")


def shared_keys_overwrite_each_other(patch: Patch) -> Suite:
    from eyeline.kernels.pieces import Strided

    def add_keys(self: Strided, x: Tensor, made: Tensor) -> None:
        self.keys(x).copy_(made)

    patch.setattr(Strided, "add_keys", add_keys)
    return kernel_suite("a run of tiles")


class SortedKeysAsValues:
    NAME = "sorted keys as values"

    def refusal(self, request: Request) -> str | None:
        return None

    def run(self, request: Request) -> tuple[Tensor, Tensor]:
        from dataclasses import replace

        return tiles.run(replace(request, value=request.key.sort(dim=2).values))


class UpperLeft:
    """SDPA's own notion of causal for a cached step."""

    NAME = "upper-left"

    def refusal(self, request: Request) -> str | None:
        shared = request.q_tokens.batch is None
        return None if request.pattern == Causal() and shared else "only causal"

    def run(self, request: Request) -> tuple[Tensor, None]:
        q, k, v = request.query, request.key, request.value
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=request.scale, enable_gqa=True
        ), None


MUTANTS = [
    window_verdict_off_by_one, causal_full_one_key_early, sinks_empty_one_key_early,
    or_planned_as_and, not_keeps_the_verdict, documents_full_across_an_edge,
    chunks_signature_without_its_phase, window_signature_constant, needed_one_key_early,
    nobody_is_full, nobody_in_a_mask, delta_is_a_hundredth_short,
    plain_delta_is_a_hundredth_short, lse_of_an_empty_row_is_zero, parts_overwrite_each_other,
    parts_merge_with_equal_shares, shared_keys_overwrite_each_other,
]  # fmt: skip


@pytest.mark.parametrize("plant", MUTANTS, ids=lambda plant: plant.__name__)
def test_the_suite_catches_it(plant: Plant) -> None:
    assert_caught(plant, memory.clear)


@pytest.mark.parametrize("kernel", [SortedKeysAsValues(), UpperLeft()], ids=lambda k: k.NAME)
def test_the_suite_catches_a_kernel(kernel: Kernel) -> None:
    with pytest.raises(AssertionError):
        check_kernel(kernel)


def test_cases_have_names_of_their_own() -> None:
    names = [case.name for case in cases()]
    assert len(set(names)) == len(names)


def test_the_cases_hold_every_kind_of_part() -> None:
    found = {
        type(part)
        for case in cases()
        if not case.pattern.varies_by and case.tokens is None
        for part in _planned(case).parts
    }
    assert found == {Run, Slab, Gathered, Reordered}


def _planned(case: Case) -> Plan:
    """A plan with tokens said, so that a grid or a layout may be of another size."""
    q, k = default_tokens(case.queries, case.keys)
    return plan(case.pattern, q_tokens=q, k_tokens=k)
