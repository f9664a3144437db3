"""Planted faults in what lies around the core: each must be caught by a test that we have."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from eyeline.caches import Evicting, Growing
from eyeline.encodings.rotary import Rotary
from eyeline.models import llama
from eyeline.patterns import Causal, Pattern, sliding_window, streaming
from eyeline.testing import check_cache
from eyeline.tokens import Tokens
from models.test_config import HF
from models.test_llama import test_logits_equal_the_plain_model as equals_the_plain_model
from models.test_llama import test_steps_equal_one_run as steps_equal_one_run
from mutants.planting import Patch, Plant, Suite, assert_caught


def rotary_ignores_the_cache_offset(patch: Patch) -> Suite:
    right = Rotary.tables

    def tables(self: Rotary, positions: Tensor, *, dtype: torch.dtype) -> Any:
        return right(self, positions - positions[..., :1], dtype=dtype)

    patch.setattr(Rotary, "tables", tables)
    return lambda: steps_equal_one_run(streaming(5, 3), 2, False)


def rotary_reads_the_other_layout(patch: Patch) -> Suite:
    def swapped(self: Rotary, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.head_dim // 2, 2).flip(-1).flatten(-2)

    patch.setattr(Rotary, "_swapped", swapped)
    return lambda: equals_the_plain_model(Causal(), lambda i, j: j <= i)


def config_window_off_by_one(patch: Patch) -> Suite:
    patch.setattr(llama, "sliding_window", lambda size: sliding_window(size + 1))

    def suite() -> None:
        assert llama.LlamaConfig.from_hf({**HF, "sliding_window": 7}).pattern == sliding_window(7)

    return suite


def evicts_one_key_early(patch: Patch) -> Suite:
    right = Pattern.needed
    patch.setattr(Pattern, "needed", lambda self, keys, at: right(self, keys, at + 1))
    return lambda: check_cache(Evicting, sliding_window(7))


def forgets_the_sinks(patch: Patch) -> Suite:
    right = Pattern.needed

    def needed(self: Pattern, keys: Tokens, at: int | Tensor) -> Tensor:
        return right(self, keys, at) & (keys.positions > 0)

    patch.setattr(Pattern, "needed", needed)
    return lambda: check_cache(Evicting, streaming(7, 3))


def stored_in_the_slot_before(patch: Patch) -> Suite:
    right = Growing.append

    def append(self: Growing, layer: int, key: Tensor, value: Tensor) -> Any:
        return right(self, layer, key, value.roll(1, 2))

    patch.setattr(Growing, "append", append)
    return lambda: check_cache(Growing, sliding_window(7))


MUTANTS = [
    rotary_ignores_the_cache_offset, rotary_reads_the_other_layout, config_window_off_by_one,
    evicts_one_key_early, forgets_the_sinks, stored_in_the_slot_before,
]  # fmt: skip


@pytest.mark.parametrize("plant", MUTANTS, ids=lambda plant: plant.__name__)
def test_a_test_catches_it(plant: Plant) -> None:
    assert_caught(plant)


@pytest.mark.parametrize("kind", [Growing, Evicting])
def test_both_kinds_of_cache_pass_the_suite(kind: type[Growing] | type[Evicting]) -> None:
    check_cache(kind)
