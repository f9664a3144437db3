"""Sinkhorn normalisation against loops in log space; the limit; the future; gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from eyeline.mechanisms.routed.sorting import balanced
from layers.dense import random
from routing.sinkhorn_oracle import doubly_stochastic

N = 7
MEMBERS = [(0, 0), (0, 2), (0, 3), (1, 3), (1, 5), (1, 6), (1, 7)]


def may(causal: bool, one: bool = False) -> Tensor:
    """Blocks of two documents, or of one."""
    document = torch.tensor([0 if one else x for x, _ in MEMBERS])
    order = torch.ones(N, N).tril(-1).bool() if causal else torch.ones(N, N).bool()
    return (document[:, None] == document)[None] & order


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("iterations", [1, 3, 8])
@pytest.mark.parametrize("size", [1.0, 30.0])
def test_equals_loops(causal: bool, iterations: int, size: float) -> None:
    scores = (random(2, 3, N, N) * size).requires_grad_()
    found = balanced(scores, may(causal), iterations=iterations, causal=causal)
    parts = [doubly_stochastic(x, MEMBERS, iterations, causal) for x in scores.flatten(0, 1)]
    due = torch.stack([torch.stack([torch.stack(row) for row in p]) for p in parts])
    torch.testing.assert_close(found, due.view_as(found), rtol=0, atol=1e-12)
    assert not found[~may(causal).expand_as(found)].any()
    above = random(*found.shape, seed=1)
    ours, theirs = (
        torch.autograd.grad((x * above).sum(), scores)[0] for x in (found, due.view_as(found))
    )
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def test_rows_sum_to_1_and_columns_in_the_limit() -> None:
    scores, errors = random(2, 3, N, N) * 3, []
    for iterations in (1, 4, 16, 64, 256):
        p = balanced(scores, may(False), iterations=iterations)
        torch.testing.assert_close(p.sum(-1), torch.ones(2, 3, N).double(), rtol=0, atol=1e-14)
        errors.append(float((p.sum(-2) - 1).abs().max()))
    assert errors == sorted(errors, reverse=True) and errors[-1] < 1e-5 < errors[0]


def test_causal_rows() -> None:
    p = balanced(random(2, 3, N, N) * 3, may(True, one=True), iterations=8, causal=True)
    torch.testing.assert_close(p[:, :, 1:].sum(-1), torch.ones(2, 3, N - 1).double())
    assert not p[:, :, 0].any()  # the first has nobody to take
    assert p[0, 0, 1, 0] == 1.0


@pytest.mark.parametrize("size", [1.0, 100.0])
def test_no_row_depends_on_a_later_one(size: float) -> None:
    scores = random(1, 2, N, N) * size
    whole = balanced(scores, may(True, one=True), iterations=8, causal=True)
    for last in range(N):
        other = scores.clone()
        other[:, :, last + 1 :] = 1e4 * random(1, 2, N - last - 1, N, seed=2)
        found = balanced(other, may(True, one=True), iterations=8, causal=True)
        assert torch.equal(found[:, :, : last + 1], whole[:, :, : last + 1])


@pytest.mark.parametrize("causal", [False, True])
def test_large_scores_stay_finite(causal: bool) -> None:
    for dtype, size in ((torch.float64, 1e5), (torch.float32, 1e5), (torch.float16, 3e4)):
        scores = (random(1, 2, N, N) * size).clamp(-6e4, 6e4).to(dtype).requires_grad_()
        p = balanced(scores, may(causal), iterations=20, causal=causal)
        assert p.isfinite().all() and p.dtype == torch.promote_types(dtype, torch.float32)
        p.square().sum().backward()
        assert scores.grad is not None and scores.grad.isfinite().all()


def test_gradients_of_second_order_and_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = random(1, 2, 3, 3).requires_grad_()
    for causal in (False, True):
        order = torch.ones(3, 3).tril(-1 if causal else 2).bool()[None]

        def run(x: Tensor, some: Tensor = order, causal: bool = causal) -> Tensor:
            return balanced(x, some, iterations=3, causal=causal)

        assert torch.autograd.gradcheck(run, scores)
        assert torch.autograd.gradgradcheck(run, scores)
        whole = run(scores)
        monkeypatch.setattr("eyeline.budgets.budgets.numbers", 1)
        assert torch.equal(run(scores), whole)
        monkeypatch.undo()


@pytest.mark.parametrize("step", [1, 2, 3, 6, 7, 8])
def test_sums_in_steps(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    scores, above = random(1, 2, N, N).requires_grad_(), random(1, 2, N, N, seed=1)
    found = []
    for size in (99, step):
        monkeypatch.setattr("eyeline.mechanisms.routed.sorting._STEP", size)
        p = balanced(scores, may(True), iterations=4, causal=True)
        found.append((p, *torch.autograd.grad((p * above).sum(), scores)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-13)
