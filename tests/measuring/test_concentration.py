"""On how few keys the weight lies, and how alike columns are, against whole matrices."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from eyeline import Causal, Full, PerHead, sliding_window
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.measuring.concentration import (
    Look,
    concentration,
    effective_rank,
    of_each_layer,
    redundancy,
    repeated_columns,
)
from eyeline.mechanisms import recipe
from models.tiny import ids, llama
from models.tiny_gpt2 import gpt2

MODELS = [llama, gpt2]
PATTERNS = [None, sliding_window(5), Full()]


def matrices(model: Any, text: list[int]) -> Tensor:
    """Weights of all layers and heads, (layers, H, n, n)."""
    return of_each_layer(model, text, lambda look: look.exact.weights(look.query, look.key)[0])


def fewest(row: list[float], share: float) -> float:
    """One query's part, key by key."""
    seen = [x for x in row if x > 0.0]
    held, count = 0.0, 0
    for weight in sorted(seen, reverse=True):
        held, count = held + weight, count + 1
        if held >= share * (1 - 1e-12):
            break
    return count / len(seen)


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("share", [0.95, 0.5])
def test_concentration_is_that_of_whole_matrices(make: Any, pattern: Any, share: float) -> None:
    model, text = make(pattern=pattern).double(), ids(1, 23)[0].tolist()
    found = concentration(model, text, share=share)
    weights = matrices(model, text)
    assert found.shape == (model.config.layers, model.config.heads) == weights.shape[:2]
    for layer, heads in enumerate(weights):
        for head, matrix in enumerate(heads):
            parts = [fewest(row, share) for row in matrix.tolist()]
            assert float(found[layer, head]) == pytest.approx(sum(parts) / len(parts))


def test_the_weights_that_are_measured_are_those_of_a_trace() -> None:
    from eyeline.models.trace import trace

    model, text = gpt2(), ids(1, 19)
    found = trace(model, text)
    for layer, weights in enumerate(matrices(model, text[0].tolist())):
        torch.testing.assert_close(weights, found[f"layers.{layer}.weights"][0])


def test_sheets_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    model, text = llama().double(), ids(1, 23)[0].tolist()
    whole = concentration(model, text)
    monkeypatch.setattr("eyeline.budgets.budgets.scored", 50)
    monkeypatch.setattr("eyeline.mechanisms.routed.scored._FEWEST_ROWS", 2)
    module, sizes = import_module("eyeline.measuring.concentration"), list[int]()
    parts = module._parts
    monkeypatch.setattr(module, "_parts", lambda x, s: (sizes.append(x.numel()), parts(x, s))[1])
    torch.testing.assert_close(concentration(model, text), whole)
    assert max(sizes) <= 2 * 2 * 23  # heads of a group, rows, keys


def test_even_and_sharp_weights() -> None:
    """Queries of 0 weigh all keys alike; of great ones, one key has it all."""
    model = llama(pattern=Full())
    text = ids(1, 20)[0].tolist()
    for layer in model.layers:
        layer.attention.qkv.weight.zero_()  # type: ignore[operator, union-attr]
    torch.testing.assert_close(concentration(model, text), torch.full((3, 6), 0.95).double())
    assert concentration(model, text, share=1.0).eq(1.0).all()
    sharp = llama(pattern=Full())
    for layer in sharp.layers:
        layer.attention.qkv.weight.mul_(30)  # type: ignore[operator, union-attr]
    assert concentration(sharp, text).mean() < 0.08


def test_nobody_to_look_at_does_not_count() -> None:
    causal, none = Causal(), Causal() & ~Causal()
    model = llama(pattern=PerHead([causal, none, causal, causal, causal, causal]))
    found = concentration(model, ids(1, 13)[0].tolist())
    assert found[:, 1].isnan().all() and not found[:, [0, 2, 3, 4, 5]].isnan().any()


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("pattern", [None, Full()], ids=str)
def test_redundancy_is_that_of_whole_matrices(make: Any, pattern: Any) -> None:
    model, text = make(pattern=pattern).double(), ids(1, 17)[0].tolist()
    found = redundancy(model, text, cosine=0.7)
    for layer, heads in enumerate(matrices(model, text)):
        for head, matrix in enumerate(heads):
            gram = torch.linalg.eigvalsh(matrix @ matrix.T).clamp(min=0).sqrt()
            shares = gram / gram.sum()
            rank = float(torch.exp(-(shares[shares > 0] * shares[shares > 0].log()).sum()))
            assert float(found.rank[layer, head]) == pytest.approx(rank, rel=1e-4)
            columns = matrix.T
            alike = [
                any(torch.cosine_similarity(columns[j], columns[i], dim=0) > 0.7 for i in range(j))
                for j in range(17)
            ]
            assert float(found.repeated[layer, head]) == pytest.approx(sum(alike) / 17)
    assert 0 < float(redundancy(model, text, cosine=0.3).repeated.mean()) < 1


def test_ranks_and_columns_that_are_known() -> None:
    eye, flat = torch.eye(7).double(), torch.full((7, 7), 1 / 7).double()
    assert effective_rank(torch.stack([eye, flat, 0 * eye])).tolist() == pytest.approx([7, 1, 0])
    assert repeated_columns(eye, 0.99) == 0.0
    assert float(repeated_columns(flat, 0.99)) == pytest.approx(6 / 7)
    assert repeated_columns(0 * eye, -1.0) == 0.0


def test_the_model_is_left_as_it_was() -> None:
    model = gpt2().train()
    concentration(model, ids(1, 11)[0].tolist())
    assert model.training and all(layer.training for layer in model.layers)
    assert not any(x.attention.mechanism._forward_pre_hooks for x in model.layers)  # type: ignore[operator, union-attr]


def test_refusals() -> None:
    model, text = llama(), ids(1, 11)[0].tolist()
    for share in (0.0, 1.5, True):
        with pytest.raises(InvalidArgument, match="share="):
            concentration(model, text, share=share)
    with pytest.raises(InvalidArgument, match="cosine=2"):
        redundancy(model, text, cosine=2)
    with pytest.raises(InvalidArgument, match="no ids"):
        concentration(model, [])
    with pytest.raises(NotSupported, match="not of LinearAttention"):
        concentration(llama(mechanism=recipe("linear")), text)


def test_a_look_keeps_what_the_mechanism_scales_by() -> None:
    model = gpt2()
    model.layers[1].attention.mechanism.scale = 0.01  # type: ignore[union-attr]
    scales = of_each_layer(model, ids(1, 5)[0].tolist(), lambda look: torch.tensor(_scale(look)))
    assert scales[1] == pytest.approx(0.01) and scales[0] == pytest.approx(11**-0.5)


def _scale(look: Look) -> float:
    return look.scored.scale
