"""Results over parts of the keys, merged, against attention over all keys at once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from eyeline import Explicit, attention_with_lse, merge
from eyeline.errors import InvalidArgument

QUERIES, KEYS, WIDTH = 7, 23, 5


def parts(seed: int, count: int, dtype: torch.dtype = torch.float64) -> list[tuple[Tensor, Tensor]]:
    """Random results; query 0 attends to nothing at all, query 1 to nothing in part 0."""
    generator = torch.Generator().manual_seed(seed)
    outs = torch.randn(count, 2, 3, QUERIES, WIDTH, generator=generator, dtype=torch.float64)
    lses = 30 * torch.randn(count, 2, 3, QUERIES, generator=generator, dtype=torch.float64)
    outs[..., 0, :], lses[..., 0] = 0.0, -torch.inf
    outs[0, ..., 1, :], lses[0, ..., 1] = 0.0, -torch.inf
    wide = torch.promote_types(dtype, torch.float32)
    return [(out.to(dtype), lse.to(wide)) for out, lse in zip(outs, lses, strict=True)]


@pytest.mark.parametrize("cuts", [(23,), (11, 12), (1, 2, 3, 17), (0, 5, 18)])
def test_merged_parts_equal_the_whole(cuts: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(2, 3, n, WIDTH, dtype=torch.float64, requires_grad=True)
        for n in (QUERIES, KEYS, KEYS)
    )
    mask = torch.rand(QUERIES, KEYS) < 0.3
    mask[0], mask[1, :12] = False, False
    whole = attention_with_lse(q, k, v, Explicit(mask))
    pieces = zip(k.split(cuts, 2), v.split(cuts, 2), mask.split(cuts, 1), strict=True)
    joined = merge(*(attention_with_lse(q, *kv, Explicit(m)) for *kv, m in pieces))
    torch.testing.assert_close(joined, whole)
    assert not joined[0][:, :, 0].any() and bool((joined[1][:, :, 0] == -torch.inf).all())
    above = [torch.randn_like(x) for x in whole]
    above[1][:, :, 0] = 0.0
    due = torch.autograd.grad(whole, (q, k, v), above)
    torch.testing.assert_close(torch.autograd.grad(joined, (q, k, v), above), due)
    assert all(bool(x.isfinite().all()) for x in due)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_equals_the_formula(count: int) -> None:
    given = parts(0, count)
    outs, lses = (torch.stack(x) for x in zip(*given, strict=True))
    lse = lses.logsumexp(0)
    weight = (lses - lse.where(lse > -torch.inf, 0.0)).exp()
    torch.testing.assert_close(merge(*given), ((weight[..., None] * outs).sum(0), lse))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_keeps_its_types_and_rounds_once(dtype: torch.dtype) -> None:
    given = parts(1, 3, dtype)
    out, lse = merge(*given)
    assert (out.dtype, lse.dtype) == (dtype, torch.float32)
    exact, _ = merge(*((x.double(), y.double()) for x, y in given))
    assert float((out.double() - exact).abs().max()) <= 2 * torch.finfo(dtype).eps


def flat(results: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    return [x.detach().clone().requires_grad_() for result in results for x in result]


def merged(*given: Tensor) -> tuple[Tensor, Tensor]:
    return merge(*zip(given[::2], given[1::2], strict=True))


def test_first_and_second_derivatives() -> None:
    given = flat([(out[:1, :1, 2:], lse[:1, :1, 2:] / 30) for out, lse in parts(2, 3)])
    assert torch.autograd.gradcheck(merged, given)
    assert torch.autograd.gradgradcheck(merged, given)


def test_empty_rows_have_gradient_zero() -> None:
    given = flat(parts(3, 3))
    out, lse = merged(*given)
    grads = torch.autograd.grad(out.sum() + lse[..., 1:].sum(), given)
    assert all(bool(x.isfinite().all()) for x in grads)
    assert all(not x[:, :, 0].any() for x in grads)


def test_numbers_of_any_size() -> None:
    out = torch.ones(1, 1, 3)
    for size in (1e30, -1e30):
        same = torch.full((1, 1), size)
        joined, lse = merge((out, same), (3 * out, same))
        assert torch.equal(joined, 2 * out) and float(lse) == pytest.approx(size)


def test_nan_stays_in_its_row() -> None:
    (out, lse), other = parts(4, 2)
    out[0, 0, 3, 1], lse[0, 0, 4] = torch.nan, torch.nan
    joined, joined_lse = merge((out, lse), other)
    rows = joined.isnan().any(-1).nonzero().tolist()
    assert rows == [[0, 0, 3], [0, 0, 4]]
    assert joined_lse.isnan().nonzero().tolist() == [[0, 0, 4]]


def test_compiles_as_one_graph() -> None:
    given = parts(5, 2, torch.float32)
    compiled = torch.compile(merge, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*given), merge(*given))


@pytest.mark.parametrize("wrong", ["none", "shapes", "swapped", "dtypes"])
def test_refuses_what_does_not_fit(wrong: str) -> None:
    out, lse = torch.zeros(2, 3, 5), torch.zeros(2, 3)
    given = {
        "none": (),
        "shapes": ((out, lse), (out[:, :2], lse[:, :2])),
        "swapped": ((lse, out),),
        "dtypes": ((out, lse), (out.double(), lse)),
    }[wrong]
    with pytest.raises(InvalidArgument):
        merge(*given)  # type: ignore[arg-type]
