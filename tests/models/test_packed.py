"""Linear layers with a fast way for one row: the same numbers, and still trainable."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from eyeline.layers import PackedLinear, can_pack, pack, packed, weight_bytes
from models.tiny import ids, llama

DTYPES = [d for d in (torch.float32, torch.bfloat16) if can_pack(torch.zeros(1, 1, dtype=d))]


def layer(dtype: torch.dtype, *, bias: bool = True) -> nn.Linear:
    return nn.Linear(37, 23, bias=bias).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [(1,), (7,), (1, 1), (2, 13), (0,), ()])
@pytest.mark.parametrize("bias", [False, True])
def test_products_are_those_of_the_plain_layer(
    dtype: torch.dtype, rows: tuple[int, ...], bias: bool
) -> None:
    linear = layer(dtype, bias=bias).requires_grad_(False)
    mine, x = PackedLinear(linear), torch.randn(*rows, 37).to(dtype)
    exact = x.double() @ linear.weight.double().T + (linear.bias.double() if bias else 0.0)
    with torch.no_grad():
        out = mine(x)
    assert out.dtype is dtype and out.shape == (*rows, 23)
    error = (out.double() - exact).abs()
    rounding = torch.finfo(dtype).eps * exact.abs() + 37 * torch.finfo(torch.float32).eps
    assert (error <= rounding).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_fast_way_is_taken_for_one_row(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    for name in ("_plain_product", "_half_product"):
        inner = getattr(packed, name)
        monkeypatch.setattr(
            packed, name, lambda *a, inner=inner, name=name: called.append(name) or inner(*a)
        )
    mine = PackedLinear(layer(dtype))
    with torch.no_grad():
        mine(torch.zeros(1, 1, 37, dtype=dtype))
        mine(torch.zeros(2, 37, dtype=dtype))
    assert called == ["_plain_product" if dtype is torch.float32 else "_half_product"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_changed_weight_is_packed_anew(dtype: torch.dtype) -> None:
    mine, x = PackedLinear(layer(dtype)), torch.randn(1, 37).to(dtype)
    with torch.no_grad():
        before = mine(x)
        mine.weight.mul_(2)
        mine.bias.mul_(2)
        torch.testing.assert_close(mine(x), 2 * before)
        mine.bias.add_(1)
        torch.testing.assert_close(mine(x), 2 * before + 1, rtol=0.02, atol=0.02)
        mine.weight = nn.Parameter(-mine.weight)
        mine.bias = nn.Parameter(-mine.bias)
        torch.testing.assert_close(mine(x), -2 * before - 1, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_row_has_gradients_too(dtype: torch.dtype) -> None:
    linear = layer(dtype)
    mine, x = PackedLinear(linear), torch.randn(1, 37).to(dtype).requires_grad_(True)
    mine(x).sum().backward()
    assert x.grad is not None and linear.weight.grad is not None
    torch.testing.assert_close(x.grad, linear.weight.sum(0, keepdim=True).detach())


def test_bfloat16_weights_are_held_exactly() -> None:
    """Down to 2^-17 every bit, below it multiples of 2^-24: read back one column at a time."""
    if torch.bfloat16 not in DTYPES:
        pytest.skip("no packed product for bfloat16 on this processor")
    numbers = torch.tensor([1.0, -255 / 256, 2**-14 * 129 / 128, 2**-17 * 129 / 128, 60000.0])
    tiny = torch.tensor([2**-24, 3 * 2**-24, 2**-30])
    linear = nn.Linear(8, 1, bias=False).bfloat16()
    linear.weight.data = torch.cat((numbers, tiny)).bfloat16()[None]
    mine = PackedLinear(linear)
    with torch.no_grad():
        read = torch.cat([mine(row[None]) for row in torch.eye(8).bfloat16()])[:, 0]
    assert torch.equal(read[:7], linear.weight[0, :7]) and read[7] == 0


def test_a_model_packs_in_place() -> None:
    model = llama()
    text, before = ids(1, 1), weight_bytes(model)
    names = list(model.state_dict())
    want = model(text)
    assert pack(model) == 3 * 4 + 1
    torch.testing.assert_close(model(text), want, rtol=1e-5, atol=1e-5)
    assert weight_bytes(model) == before and list(model.state_dict()) == names
    assert pack(model) == 0


def test_what_cannot_be_packed_is_left_alone() -> None:
    too_large = torch.full((1, 1), 1e5, dtype=torch.bfloat16)
    for weight in (torch.zeros(1, 1).double(), torch.zeros(1, 1, device="meta"), too_large):
        assert not can_pack(weight)
    module = nn.Sequential(nn.Linear(3, 2).double())
    assert pack(module) == 0 and type(module[0]) is nn.Linear


@pytest.mark.skipif(torch.float32 not in DTYPES, reason="no fast way for float32 here")
@pytest.mark.parametrize("shape", [(74, 37), (73, 37), (997, 11)])
def test_tall_weights_lie_by_columns_and_stay_what_they_are(shape: tuple[int, int]) -> None:
    model = nn.Sequential(nn.Linear(shape[1], shape[0]), nn.Embedding(*shape))
    model[1].weight = weight = model[0].weight  # tied, as a head is
    before, x = weight.detach().clone(), torch.randn(1, 1, shape[1])
    assert pack(model) == 1 and model[0].weight is weight is model[1].weight
    assert (weight.stride(0) == 1) is (shape != (73, 37)) and weight.shape == shape
    assert torch.equal(weight, before) and torch.equal(model[1](torch.tensor(5)), before[5])
    with torch.no_grad():
        for rows in (x, torch.randn(3, 5, shape[1])):
            want = rows @ before.T + model[0].bias
            torch.testing.assert_close(model[0](rows), want, rtol=0, atol=1e-5)
    model[0](x).sum().backward()
    torch.testing.assert_close(weight.grad, x[0].expand(shape))
