"""Packed linear layers multiply by the same numbers, and say what they cannot do."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from eyeline.errors import NotSupported
from eyeline.layers import PackedLinear, can_pack, pack, weight_bytes
from models.tiny import ids, llama

DTYPES = [dtype for dtype in (torch.float32, torch.bfloat16) if can_pack(dtype)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [(), (1,), (7,), (1, 1), (2, 13)])
@pytest.mark.parametrize("bias", [False, True])
def test_products_are_those_of_the_plain_layer(
    dtype: torch.dtype, rows: tuple[int, ...], bias: bool
) -> None:
    linear = nn.Linear(37, 23, bias=bias).to(dtype).requires_grad_(False)
    packed, x = PackedLinear(linear), torch.randn(*rows, 37).to(dtype)
    assert torch.equal(packed.weight, linear.weight)
    exact = x.double() @ linear.weight.double().T + (linear.bias.double() if bias else 0.0)
    error = (packed(x).double() - exact).abs().max()
    assert packed(x).dtype is dtype and packed(x).shape == (*rows, 23)
    assert error <= 2 * (linear(x).double() - exact).abs().max() + torch.finfo(dtype).eps


def test_a_model_packs_in_place_and_counts_its_weights() -> None:
    model = llama()
    text, before = ids(2, 7), weight_bytes(model)
    want = model(text)
    assert pack(model) == 3 * 4 + 1
    torch.testing.assert_close(model(text), want, rtol=1e-5, atol=1e-5)
    assert weight_bytes(model) == before
    assert pack(model) == 0


def test_gradients_are_refused_not_dropped() -> None:
    packed = PackedLinear(nn.Linear(5, 3))
    x = torch.zeros(1, 5, requires_grad=True)
    with pytest.raises(NotSupported, match="packed=False"):
        packed(x)
    with torch.no_grad():
        assert packed(x).shape == (1, 3)


def test_what_cannot_be_packed_is_left_alone() -> None:
    assert not can_pack(torch.float64) and not can_pack(torch.float32, "meta")
    module = nn.Sequential(nn.Linear(3, 2).double())
    assert pack(module) == 0 and type(module[0]) is nn.Linear
