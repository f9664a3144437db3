"""The k greatest of each row, against sorting, whatever the order and however many are equal."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eyeline.mechanisms.routed import best as module
from eyeline.mechanisms.routed.best import among_greatest, greatest

INF = float("inf")


def sorted_out(row: list[float], k: int) -> list[int]:
    """By falling number, and of equal ones by column."""
    order = sorted((j for j, x in enumerate(row) if x > -INF), key=lambda j: (-row[j], j))
    return sorted(order[:k])


def check(scores: Tensor, k: int) -> None:
    found = greatest(scores, k)
    assert found.shape == (len(scores), min(k, scores.shape[1]))
    for row, columns in zip(scores.tolist(), found.tolist(), strict=True):
        assert sorted(x for x in columns if x >= 0) == sorted_out(row, k)


@settings(max_examples=150)
@given(st.data())
def test_any_rows(data: st.DataObject) -> None:
    """Small groups, so that short rows are pruned; few numbers, so that many are equal."""
    rows, columns = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 40))
    numbers = st.sampled_from([-INF, -1.0, 0.0, 0.5, 2.0, 3.0, 1e30])
    row = st.lists(numbers, min_size=columns, max_size=columns)
    scores = torch.tensor(data.draw(st.lists(row, min_size=rows, max_size=rows)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_GROUP", data.draw(st.integers(2, 5)))
        patch.setattr(module, "_FEWEST", data.draw(st.integers(1, 4)))
        check(scores, data.draw(st.integers(1, 6)))


ORDERS: dict[str, Callable[[Tensor], Tensor]] = {
    "drawn": lambda x: x,
    "rising": lambda x: x.sort(1).values,
    "falling": lambda x: x.sort(1, descending=True).values,
    "causal": lambda x: x.tril(x.shape[1] - 300) + torch.full_like(x, -INF).triu(x.shape[1] - 299),
    "few": lambda x: x.masked_fill(x < 2, -INF),
    "equal": lambda x: x.round(),
    "all equal": torch.zeros_like,
    "nothing": lambda x: x - INF,
    "strided": lambda x: x + 9 * (torch.arange(x.shape[1]) % (-(-x.shape[1] // 16)) == 3),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("columns", [640, 997, 3001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_long_rows(order: str, columns: int, dtype: torch.dtype) -> None:
    drawn = torch.randn(7, columns, generator=torch.Generator().manual_seed(columns), dtype=dtype)
    for k in (1, 10):
        check(ORDERS[order](drawn), k)


def test_any_of_the_greatest_in_any_number_of_dimensions() -> None:
    """Rows that do not lie one after the other, as those of one document of several."""
    scores = torch.randn(2, 3, 5000, generator=torch.Generator().manual_seed(0))[..., 100:4200]
    for k in (1, 8, 200):
        found = among_greatest(scores, k)
        want = scores.topk(k).values
        assert found.shape == (2, 3, k)
        assert torch.equal(scores.gather(2, found).sort(2, descending=True).values, want)
        assert all(len(row.unique()) == k for row in found.flatten(0, 1))
    nothing = torch.full((4, 1003), -INF)
    assert all(len(row.unique()) == 9 for row in among_greatest(nothing, 9))


def test_not_a_number_is_seen() -> None:
    """Whoever scores a key so is to see that something is wrong."""
    for columns in (20, 4096):
        scores = torch.randn(3, columns)
        scores[1, 17] = float("nan")
        assert (greatest(scores, 4) == 17).any(1).tolist()[1]
        assert (greatest(scores * float("nan"), 4) >= 0).all()
    equal = torch.tensor([[float("nan"), 5.0, 5.0, 5.0], [1.0, 5.0, 5.0, 5.0]])
    assert greatest(equal, 2).sort(1).values.tolist() == [[0, 1], [1, 2]]
    equal[:, 1] = float("nan")
    assert greatest(equal, 3).sort(1).values.tolist() == [[0, 1, 2], [1, 2, 3]]
