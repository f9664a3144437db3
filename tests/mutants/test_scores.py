"""Planted faults in score modifiers, steps and dropout: each must be caught by the suite."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from eyeline.kernels import product, tiles
from eyeline.kernels.product import Steps
from eyeline.scores import (
    ALiBi,
    Bias,
    Block,
    Dropout,
    Factor,
    OffsetFactor,
    Product,
    Shaw,
    Softcap,
    T5Bias,
    TransformerXL,
    Values,
    biases,
)  # fmt: skip
from eyeline.scores.columns import Diagonals, Listed
from eyeline.testing.cases import scored_cases
from eyeline.testing.kernel import parity
from mutants.planting import Patch, Plant, Suite, assert_caught
from scores import test_dropout, test_formulas
from scores.formulas import MODS


def formulas(name: str) -> Suite:
    """The modifier of this name against its paper's formula."""
    mod, width = {n: (m, w) for n, m, w in MODS}[name]
    return lambda: test_formulas.test_formula(mod, width)


def kernels(name: str) -> Suite:
    """The tile kernel against the definition, in calls with this modifier.

    Once one has failed, only that one: without a fault, all of them hold in kernels/.
    """
    chosen = [case for case in scored_cases() if case.name.startswith(f"{name}, ")]
    assert chosen

    def suite() -> None:
        for case in chosen.copy():
            try:
                parity(tiles, case)
            except AssertionError:
                chosen[:] = [case]
                raise

    return suite


def alibi_adds_distance(patch: Patch) -> Suite:
    right = ALiBi.curve
    patch.setattr(ALiBi, "curve", lambda self, distances: -right(self, distances))
    return formulas("ALiBi")


def alibi_counts_from_the_next_key(patch: Patch) -> Suite:
    right = ALiBi.curve
    patch.setattr(ALiBi, "curve", lambda self, distances: right(self, distances + 1))
    return formulas("ALiBi")


def t5_bucket_off_by_one(patch: Patch) -> Suite:
    right = biases._bucket
    patch.setattr(
        biases, "_bucket", lambda away, count, most: right((away - 1).clamp(min=0), count, most)
    )
    return formulas("T5, one side")


def t5_sides_exchanged(patch: Patch) -> Suite:
    right = T5Bias.buckets
    patch.setattr(T5Bias, "buckets", lambda self, distances: right(self, -distances))
    return formulas("T5, both sides")


def t5_reach_too_short(patch: Patch) -> Suite:
    patch.setattr(T5Bias, "reach", property(lambda self: (1 - self.max_distance // 2, 0)))
    return kernels("T5, one side")


def shaw_clip_off_by_one(patch: Patch) -> Suite:
    def vectors(self: Shaw, table: Tensor, distances: Tensor) -> Tensor:
        most = self.max_distance - 1
        table = table if self.num_heads is not None else table[None]
        return table[:, distances.clamp(-most, most) + self.max_distance]

    patch.setattr(Shaw, "_vectors", vectors)
    return formulas("Shaw")


def transformer_xl_looks_ahead(patch: Patch) -> Suite:
    right = TransformerXL.places
    patch.setattr(TransformerXL, "places", lambda self, distances: right(self, -distances))
    return formulas("Transformer-XL")


def transformer_xl_position_bias_unscaled(patch: Patch) -> Suite:
    right = TransformerXL.steps
    patch.setattr(TransformerXL, "steps", lambda self: (right(self)[0], Bias(self.leaning)))
    return formulas("Transformer-XL")


def factor_before_the_softmax(patch: Patch) -> Suite:
    def steps(self: OffsetFactor) -> tuple[Bias]:
        return (Bias(lambda distances: self(distances).abs().log()),)

    patch.setattr(OffsetFactor, "steps", steps)
    return formulas("OffsetFactor")


def diagonals_spread_shifted(patch: Patch) -> Suite:
    right = Diagonals.add

    def shifted(self: Diagonals, pairs: Tensor, rows: Tensor, *, alpha: float = 1.0) -> Tensor:
        return right(self, pairs, rows.roll(1, -1), alpha=alpha)

    patch.setattr(Diagonals, "add", shifted)
    return kernels("Shaw")


def diagonals_collapse_shifted(patch: Patch) -> Suite:
    right = Diagonals.collapse
    patch.setattr(Diagonals, "collapse", lambda self, pairs: right(self, pairs).roll(1, -1))
    return kernels("Transformer-XL")


def diagonals_line_backwards(patch: Patch) -> Suite:
    right = Diagonals.spread_line
    patch.setattr(Diagonals, "spread_line", lambda self, line: right(self, line.flip(-1)))
    return kernels("OffsetBias")


def scattered_line_of_another_head(patch: Patch) -> Suite:
    right = Listed.spread_line
    patch.setattr(Listed, "spread_line", lambda self, line: right(self, line.roll(1, 1)))
    return kernels("many")


def table_gradient_of_the_first_block_only(patch: Patch) -> Suite:
    right, seen = Block.collect, list[Tensor]()

    def collect(self: Block, table: Any, found: Tensor) -> None:
        if not any(table.grad.data_ptr() == grad.data_ptr() for grad in seen):
            seen.append(table.grad)
            right(self, table, found)

    patch.setattr(Block, "collect", collect)
    return kernels("OffsetBias")


def table_gradient_of_the_first_batch_row_only(patch: Patch) -> Suite:
    right = Block.collect

    def collect(self: Block, table: Any, found: Tensor) -> None:
        if self.row == 0:
            right(self, table, found)

    patch.setattr(Block, "collect", collect)
    return kernels("T5")


def query_gets_nothing_from_its_product(patch: Patch) -> Suite:
    right = Product.backward

    def backward(self: Product, slope: Tensor, after: Tensor, block: Block, table: Any) -> Tensor:
        before = len(block.grad_query)
        found = right(self, slope, after, block, table)
        del block.grad_query[before:]
        return found

    patch.setattr(Product, "backward", backward)
    return kernels("Shaw")


def weights_get_nothing_from_added_values(patch: Patch) -> Suite:
    right = Values.backward
    patch.setattr(Values, "backward", lambda self, *given: torch.zeros_like(right(self, *given)))
    return kernels("Shaw")


def factors_take_no_part_in_the_slope(patch: Patch) -> Suite:
    right = Steps.slope_of_weight

    def slope_of_weight(self: Steps, slope: Tensor, weight: Tensor) -> Tensor:
        right(self, slope.clone(), weight)
        return slope

    patch.setattr(Steps, "slope_of_weight", slope_of_weight)
    return kernels("OffsetFactor")


def gradient_of_factors_without_the_weight(patch: Patch) -> Suite:
    patch.setattr(Factor, "collect", lambda self, slope, block, table: None)
    return kernels("OffsetFactor")


def cap_derived_from_the_score_before(patch: Patch) -> Suite:
    patch.setattr(Softcap, "backward", lambda self, slope, after, block, table: slope)
    return kernels("T5, then capped")


def steps_undone_in_the_order_they_were_done(patch: Patch) -> Suite:
    def slope_before(self: Steps, slope: Tensor, kept: list[Tensor | None]) -> Tensor:
        for (step, table), after in zip(self.pairing, kept, strict=True):
            found = after if after is not None else slope
            slope = step.backward(slope, found, self.block, table)  # type: ignore[attr-defined]
        return slope

    patch.setattr(Steps, "slope_before", slope_before)
    return kernels("T5, then capped")


def dropout_not_rescaled(patch: Patch) -> Suite:
    right = Dropout._kept
    patch.setattr(Dropout, "_kept", lambda self, *given: right(self, *given) * (1 - self.p))

    def suite() -> None:
        test_dropout.test_as_many_as_it_should(0.5)
        test_dropout.test_right_in_expectation()

    return suite


def dropout_different_in_backward(patch: Patch) -> Suite:
    right = product.backward

    def backward(*given: Any) -> Any:
        *most, steps = given
        other = tuple(
            (replace(s, seed=s.seed + 1) if isinstance(s, Dropout) else s, table)
            for s, table in steps.pairing
        )
        return right(*most, replace(steps, pairing=other))

    patch.setattr(product, "backward", backward)
    return kernels("dropout")


def dropout_the_same_in_every_head(patch: Patch) -> Suite:
    right = Dropout._kept
    patch.setattr(
        Dropout, "_kept",
        lambda self, row, heads, *given: right(self, row, torch.zeros_like(heads), *given),
    )  # fmt: skip

    def suite() -> None:
        noise = test_dropout.noise(5)
        assert test_dropout.is_noise(noise * noise.roll(1, 1))

    return suite


def dropout_by_place_in_the_block(patch: Patch) -> Suite:
    right = Dropout.factor

    def factor(self: Dropout, block: Block, table: Any, dtype: torch.dtype) -> Tensor:
        q, k = (
            marks._replace(slot=torch.arange(marks.slot.shape[1]).expand_as(marks.slot))
            for marks in (block.q, block.k)
        )
        return right(self, replace(block, q=q, k=k), table, dtype)

    patch.setattr(Dropout, "factor", factor)
    return kernels("dropout")


MUTANTS = [
    alibi_adds_distance, alibi_counts_from_the_next_key, t5_bucket_off_by_one, t5_sides_exchanged,
    t5_reach_too_short, shaw_clip_off_by_one, transformer_xl_looks_ahead,
    transformer_xl_position_bias_unscaled, factor_before_the_softmax, diagonals_spread_shifted,
    diagonals_collapse_shifted, diagonals_line_backwards, scattered_line_of_another_head,
    table_gradient_of_the_first_block_only, table_gradient_of_the_first_batch_row_only,
    query_gets_nothing_from_its_product, weights_get_nothing_from_added_values,
    factors_take_no_part_in_the_slope, gradient_of_factors_without_the_weight,
    cap_derived_from_the_score_before, steps_undone_in_the_order_they_were_done,
    dropout_not_rescaled, dropout_different_in_backward, dropout_the_same_in_every_head,
    dropout_by_place_in_the_block,
]  # fmt: skip


@pytest.mark.parametrize("plant", MUTANTS, ids=lambda plant: plant.__name__)
def test_the_suite_catches_it(plant: Plant) -> None:
    assert_caught(plant)
