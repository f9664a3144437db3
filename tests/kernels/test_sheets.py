"""Rows and heads in strips: each written once, all of them covered, whatever their number."""

from __future__ import annotations

import pytest
import torch

from eyeline import Causal, Full, Pattern, PerHead, attention, bigbird, sliding_window
from eyeline.exact.call import make_request
from eyeline.kernels import tiles
from eyeline.kernels.request import Request

PATTERNS = [sliding_window(37), PerHead([Causal(), Full()] * 3), bigbird(16, 2, 1)]


def tensors() -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = ((2, 6, 211, 8), (2, 3, 211, 8), (2, 3, 211, 8))
    return [torch.randn(shape).bfloat16().requires_grad_() for shape in shapes]


def request(pattern: Pattern) -> Request:
    q, k, v = tensors()
    return make_request(q, k, v, pattern, scale=None, q_tokens=None, k_tokens=None)


@pytest.mark.parametrize("size", [1, 1 << 14, 1 << 30])
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_every_head_is_in_one_strip(
    pattern: Pattern, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eyeline.budgets.budgets.half_sums", size)
    written = torch.zeros(2, 6), torch.zeros(2, 3)
    for strip in tiles.strips(request(pattern)):
        written[0][strip.row, strip.heads] += 1
        written[1][strip.row, strip.key_heads] += 1
        inside = torch.zeros(6)
        for sheet in strip.sheets:
            assert sheet.row == strip.row
            assert not sheet.first or not inside[sheet.heads].any()
            inside[sheet.heads] += 1
        assert inside[strip.heads].all()
        assert inside.sum() == inside[strip.heads].sum()
    assert all((x == 1).all() for x in written)


def test_half_types_are_cut_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eyeline.budgets.budgets.half_sums", 1)
    half = request(sliding_window(37))
    assert len(list(tiles.strips(half))) == 6  # two rows of three key heads
    q, k, v = (x.float() for x in tensors())
    whole = make_request(q, k, v, Causal(), scale=None, q_tokens=None, k_tokens=None)
    assert len(list(tiles.strips(whole))) == 2


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_it_does_not_matter_how_few_heads_at_a_time(
    pattern: Pattern, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, found = tensors(), []
    for size in (1, 1 << 30):
        monkeypatch.setattr("eyeline.budgets.budgets.half_sums", size)
        out = attention(*inputs, pattern, backend="tiles")
        found.append((out, *torch.autograd.grad(out.float().square().sum(), inputs)))
    for few, all_at_once in zip(*found, strict=True):
        torch.testing.assert_close(few, all_at_once, rtol=2e-2, atol=2e-2)
