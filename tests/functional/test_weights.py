"""Weights of the pairs that look, without n²: against the whole matrix, and its derivatives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import pytest
import torch
from torch import Tensor

from eyeline import (
    Causal,
    Explicit,
    PerHead,
    Sinks,
    Tokens,
    Window,
    attention_weights,
    sliding_window,
    sparse_transformer,
    streaming,
)  # fmt: skip
from eyeline.errors import NotSupported
from eyeline.exact.weights import column_sums, sparse_attention_weights
from eyeline.kernels import reference
from eyeline.kernels.request import mask_of
from eyeline.scores import Bias, Factor, Product, ScoreMod, Softcap, Step, Values
from eyeline.testing.cases import Case, cases
from eyeline.testing.kernel import largest_tensor

CASES = list(cases())


@final
@dataclass(frozen=True, eq=False)
class Everything(ScoreMod):
    """A bias and a vector for each distance, softcapped; a factor; and values, which do nothing."""

    bias: Tensor
    vector: Tensor
    factor: Tensor

    @staticmethod
    def drawn(heads: int, width: int) -> Everything:
        torch.manual_seed(3)
        shapes = (heads, 9), (1, 9, width), (heads, 9)
        made = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
        return Everything(*(x.requires_grad_() for x in made))

    @property
    def tables(self) -> tuple[Tensor, ...]:
        return self.bias, self.vector, self.factor

    def steps(self) -> tuple[Step, ...]:
        def read(table: Tensor) -> Callable[[Tensor], Tensor]:
            return lambda distance: table[:, distance.clamp(-4, 4) + 4]

        curves = [read(table) for table in (*self.tables, self.vector)]
        bias, vector, factor, values = curves
        return (
            Bias(bias, (-4, 4)), Product(vector, (-4, 4)), Softcap(2.0), Factor(factor, (-4, 4)),
            Values(values, (-4, 4)),
        )  # fmt: skip


def arguments(case: Case) -> tuple[tuple[Tensor, ...], dict[str, Tokens]]:
    request = case.request()
    tokens = {"q_tokens": request.q_tokens, "k_tokens": request.k_tokens}
    return (request.query, request.key), tokens


@pytest.mark.parametrize("first", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_every_pattern_gives_the_matrix_and_its_columns(first: int) -> None:
    for case in CASES[first::2]:
        tensors, tokens = arguments(case)
        right = attention_weights(*tensors, case.pattern, **tokens)
        found = sparse_attention_weights(*tensors, case.pattern, **tokens)
        torch.testing.assert_close(found.to_dense(), right, msg=lambda m, c=case: f"{c}: {m}")
        sums = column_sums(*tensors, case.pattern, **tokens)
        torch.testing.assert_close(sums, right.sum(2), msg=lambda m, c=case: f"{c}: {m}")


def test_the_pairs_are_those_that_look_in_order() -> None:
    for case in CASES[::9]:
        tensors, tokens = arguments(case)
        found = sparse_attention_weights(*tensors, case.pattern, **tokens)
        mask = mask_of(case.request()).broadcast_to(found.shape)
        assert torch.equal(found.indices(), mask.nonzero().T)
        ones, sums = found.values().new_ones(()), torch.sparse.sum(found, -1).to_dense()
        torch.testing.assert_close(sums, torch.where(mask.any(-1), ones, 0 * ones))
        # torch itself agrees that it is coalesced and within its size.
        torch.sparse_coo_tensor(
            found.indices(), found.values(), found.shape, is_coalesced=True, check_invariants=True
        )


MODDED = [
    case
    for case in CASES
    if case.name
    in (
        "a run and a slab", "4/1 heads of 3", "left pads, streaming", "packed, not causal",
        "out of order, causal", "gaps, streaming", "strided transformer, L=131 S=131",
        "bigbird, left pads", "per head, one empty, L=S=131", "scattered blocks", "8/2 heads of 33",
        "causal & strided, L=5 S=131", "explicit per head, one head empty",
    )
]  # fmt: skip


@pytest.mark.parametrize("case", MODDED, ids=str)
def test_scores_and_weights_that_are_changed(case: Case) -> None:
    tensors, tokens = arguments(case)
    mod = Everything.drawn(case.heads, case.width)
    right = attention_weights(*tensors, case.pattern, score_mod=mod, **tokens)
    found = sparse_attention_weights(*tensors, case.pattern, score_mod=mod, **tokens)
    torch.testing.assert_close(found.to_dense(), right)
    sums = column_sums(*tensors, case.pattern, score_mod=mod, **tokens)
    torch.testing.assert_close(sums, right.sum(2).detach())


@pytest.mark.parametrize("case", [*MODDED, *CASES[::29]], ids=str)
@pytest.mark.parametrize("changed", [False, True])
def test_gradients(case: Case, changed: bool) -> None:
    tensors, tokens = arguments(case)
    mod = Everything.drawn(case.heads, case.width) if changed else None
    leaves = [x.requires_grad_() for x in tensors] + ([*mod.tables] if mod is not None else [])
    grads = []
    for weights in (attention_weights, sparse_attention_weights):
        found = weights(*tensors, case.pattern, score_mod=mod, **tokens)
        dense = found.to_dense() if found.is_sparse else found
        above = torch.linspace(-1, 1, dense.numel(), dtype=dense.dtype).view_as(dense)
        grads.append(torch.autograd.grad((dense * above).sum(), leaves, allow_unused=True))
    for right, found in zip(*grads, strict=True):
        torch.testing.assert_close(found, right)


def test_gradients_of_the_values_alone() -> None:
    (query, key), _ = arguments(CASES[0])
    query = query.requires_grad_()
    values = sparse_attention_weights(query, key, Causal()).values()
    dense = attention_weights(query, key, Causal())
    (found,) = torch.autograd.grad((values**2).sum(), query)
    (right,) = torch.autograd.grad((dense**2).sum(), query)
    torch.testing.assert_close(found, right)


def test_the_second_derivative_is_refused() -> None:
    (query, key), _ = arguments(Case("", Causal(), 5, 5))
    query = query.requires_grad_()
    values = sparse_attention_weights(query, key, Causal()).values()
    (first,) = torch.autograd.grad((values**2).sum(), query, create_graph=True)
    with pytest.raises(NotSupported, match="sparse_attention_weights has first derivatives only"):
        torch.autograd.grad((first**2).sum(), query)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_other_types(dtype: torch.dtype) -> None:
    case = Case("", streaming(13, 2), 131, 131)
    query, key = (3 * x.to(dtype) for x in arguments(case)[0])
    found = sparse_attention_weights(query, key, case.pattern)
    assert found.dtype == dtype
    right = attention_weights(query, key, case.pattern)
    torch.testing.assert_close(found.to_dense(), right)
    sums = column_sums(query, key, case.pattern)
    assert sums.dtype == torch.float32
    exact = attention_weights(query.float(), key.float(), case.pattern).sum(2)
    torch.testing.assert_close(sums, exact)


def test_under_autocast() -> None:
    query, key = (x.float() for x in arguments(Case("", Causal(), 31, 31))[0])
    with torch.autocast("cpu", torch.bfloat16):
        found = sparse_attention_weights(query, key, sliding_window(7))
        sums = column_sums(query, key, sliding_window(7))
    assert found.dtype == torch.bfloat16
    rounded = query.bfloat16(), key.bfloat16()
    right = attention_weights(*rounded, sliding_window(7))
    assert torch.equal(found.to_dense(), right)
    wide = attention_weights(*(x.float() for x in rounded), sliding_window(7))
    torch.testing.assert_close(sums, wide.sum(2))


def test_large_scores_do_not_overflow() -> None:
    (query, key), _ = arguments(Case("", Causal(), 67, 67))
    found = sparse_attention_weights(1e4 * query, key, Causal()).to_dense()
    torch.testing.assert_close(found, attention_weights(1e4 * query, key, Causal()))


@pytest.mark.parametrize("shape", [(0, 3, 5), (2, 0, 5), (2, 3, 0)])
def test_empty_sizes(shape: tuple[int, int, int]) -> None:
    batch, length, width = shape
    query, key = torch.zeros(batch, 4, length, width), torch.zeros(batch, 2, length, width)
    found = sparse_attention_weights(query, key, Causal())
    assert found.shape == (batch, 4, length, length)
    torch.testing.assert_close(found.to_dense(), attention_weights(query, key, Causal()))
    assert column_sums(query, key, Causal()).shape == (batch, 4, length)


def test_no_key_and_no_pair() -> None:
    query, key = torch.zeros(1, 2, 3, 5), torch.zeros(1, 2, 0, 5)
    assert sparse_attention_weights(query, key)._nnz() == 0
    assert sparse_attention_weights(query, query, Sinks(0)).requires_grad is False
    assert not column_sums(query, query, Sinks(0)).any()
    leaf = query.requires_grad_()
    sparse_attention_weights(leaf, leaf, Sinks(0)).to_dense().sum().backward()
    assert leaf.grad is not None
    assert not leaf.grad.any()


@pytest.mark.parametrize("pattern", [sparse_transformer(64), streaming(100, 4)], ids=str)
def test_no_n_squared(pattern: Causal) -> None:
    length = 4099
    query, key = torch.randn(2, 1, 1, length, 4).requires_grad_().unbind(0)

    def run() -> None:
        sparse_attention_weights(query, key, pattern).values().square().sum().backward()

    assert largest_tensor(run) < length**2 / 4


@pytest.mark.parametrize("pattern", [Causal(), Causal() | Window(5, 5), ~Window(9, 9)], ids=str)
def test_column_sums_are_linear_even_where_all_look(pattern: Causal) -> None:
    length = 4099
    query, key = torch.randn(2, 1, 1, length, 4).unbind(0)
    assert largest_tensor(lambda: column_sums(query, key, pattern)) < length**2 / 8


def test_what_was_planned_in_inference_serves_training() -> None:
    (query, key), _ = arguments(Case("", Causal(), 31, 31))
    pattern = PerHead([sliding_window(3), Causal(), Explicit(torch.eye(31).bool()), Sinks(2)])
    with torch.inference_mode():
        sparse_attention_weights(query, key, pattern)
    leaf = query.requires_grad_()
    sparse_attention_weights(leaf, key, pattern).values().square().sum().backward()
    assert leaf.grad is not None


@pytest.mark.parametrize("weights", [sparse_attention_weights, column_sums])
def test_what_blocks_cannot_do_is_refused(weights: Callable[..., Tensor]) -> None:
    (query, key), _ = arguments(Case("", Causal(), 5, 5))
    with pytest.raises(NotSupported, match=r"callable score_mod.*attention_weights\(…\)"):
        weights(query, key, score_mod=lambda score, b, h, i, j: score)
    far = Tokens.listed([0, 1, 2, 3, 1 << 40])
    mod = Everything.drawn(4, 8)
    wide = replace(mod.steps()[0], reach=(None, None))  # type: ignore[type-var]
    with pytest.raises(NotSupported, match="positions lie up to"):
        weights(query, key, score_mod=Only(wide), q_tokens=far, k_tokens=far)


@final
@dataclass(frozen=True, eq=False)
class Only(ScoreMod):
    step: Step

    def steps(self) -> tuple[Step, ...]:
        return (self.step,)


def test_the_reference_has_the_same_row_sums() -> None:
    """Weights come from the log-sum-exp that the kernels return."""
    request = Case("", streaming(5, 2), 31, 31).request()
    score = request.scale * (request.query @ request.key.repeat_interleave(2, 1).mT)
    _, lse = reference.run(request)
    found = sparse_attention_weights(request.query, request.key, request.pattern)
    b, h, i, j = found.indices()
    torch.testing.assert_close(found.values(), (score[b, h, i, j] - lse[b, h, i]).exp())
