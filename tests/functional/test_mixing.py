"""Blocks beside their mixtures against a plain product, with and without the half that is 0."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from eyeline.mechanisms.routed.sinkhorn import beside
from layers.dense import random


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 9])
@pytest.mark.parametrize("lower", [False, True])
def test_equals_a_product(rows: int, lower: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eyeline.budgets.budgets.mixed_rows", rows)
    p, x = random(2, 3, 7, 7), random(2, 3, 7, 5, seed=1).requires_grad_()
    p = (p.tril(-1) if lower else p).requires_grad_()
    found, due = beside(p, x, lower), torch.stack((x, p @ x), 3)
    torch.testing.assert_close(found, due, rtol=0, atol=1e-13)
    above = random(*due.shape, seed=2)
    slopes = [torch.autograd.grad((y * above).sum(), (p, x)) for y in (found, due)]
    for ours, theirs in zip(*slopes, strict=True):
        torch.testing.assert_close(_kept(ours, lower), _kept(theirs, lower), rtol=0, atol=1e-13)


def _kept(x: Tensor, lower: bool) -> Tensor:
    """Where p is 0 whatever the scores are, its slope leads nowhere."""
    return x.tril(-1) if lower and x.shape[-1] == 7 else x
