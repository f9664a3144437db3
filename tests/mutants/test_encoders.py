"""Planted faults in BERT and its sentence vectors: each must be caught by a test that we have."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from eyeline.layers import Block
from eyeline.models import bert, pooling
from eyeline.tokens import Tokens
from models.test_bert import test_a_padded_row_equals_the_text_alone as equals_alone
from models.test_bert import test_documents_of_a_batch_and_nobody_between as documents
from models.test_bert import test_it_equals_the_plain_model as equals_the_plain_model
from models.test_text_vectors import test_only_real_tokens_count as only_real_tokens
from mutants.planting import Patch, Plant, Suite, assert_caught


def pads_are_seen(patch: Patch) -> Suite:
    right = Block.forward
    patch.setattr(Block, "forward", lambda self, x, **_: right(self, x))
    return lambda: equals_alone("right", None)


def positions_run_on_in_packed_documents(patch: Patch) -> Suite:
    patch.setattr(Tokens, "encoded", property(lambda tokens: torch.arange(tokens.length)))
    return documents


def segments_are_forgotten(patch: Patch) -> Suite:
    right = bert.Embeddings.forward
    patch.setattr(
        bert.Embeddings, "forward", lambda self, ids, tokens, _: right(self, ids, tokens, None)
    )
    return lambda: equals_the_plain_model(None, lambda i, j: True)


def pads_are_pooled(patch: Patch) -> Suite:
    def everybody(hidden: Tensor, tokens: Any) -> Tensor:
        return torch.ones(*hidden.shape[:2], 1, dtype=torch.bool)

    patch.setattr(pooling, "_real", everybody)
    return lambda: only_real_tokens("mean", "left")


MUTANTS = [
    pads_are_seen, positions_run_on_in_packed_documents, segments_are_forgotten, pads_are_pooled,
]  # fmt: skip


@pytest.mark.parametrize("plant", MUTANTS, ids=lambda plant: plant.__name__)
def test_a_test_catches_it(plant: Plant) -> None:
    assert_caught(plant)
