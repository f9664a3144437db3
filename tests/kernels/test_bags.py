"""Sums by slot against adding row by row: slots once in each lane, with holes, and many times."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from eyeline.kernels.route import bags
from eyeline.tokens import NOBODY

LENGTH, LANES = 13, 5


def once() -> Tensor:
    return torch.stack([torch.randperm(LENGTH) for _ in range(LANES)])


def with_holes() -> Tensor:
    slots = torch.cat((torch.full((LANES, 3), NOBODY), once()), 1)
    return slots.masked_fill(torch.rand(slots.shape) < 0.3, NOBODY)


def one_missing() -> Tensor:
    """As many places as slots, of which one stands twice."""
    slots = once()
    slots[2, 4] = slots[2, 5]
    return slots


def many_times() -> Tensor:
    return torch.randint(-1, LENGTH, (LANES, 3 * LENGTH))


def wide() -> Tensor:
    """More lanes than a table of slots could have."""
    return torch.randint(-1, LENGTH, (31, 2))


@pytest.mark.parametrize("make", [once, with_holes, one_missing, many_times, wide])
def test_sums_and_shares(make: Callable[[], Tensor]) -> None:
    torch.manual_seed(0)
    slots = make()
    check(slots.unsqueeze(0))
    check(torch.stack([slots, slots.flip(0), slots.roll(1, 1)]))


def check(slots: Tensor) -> None:
    """Sequences (n, A, M), one after the other."""
    found, length = bags(slots, LENGTH), len(slots) * LENGTH
    shifted = slots + torch.arange(len(slots))[:, None, None] * LENGTH
    flat = torch.where(slots == NOBODY, NOBODY, shifted).flatten()
    own = [(flat == slot).nonzero().flatten() for slot in range(length)]
    assert torch.equal(found.places, torch.cat(own))
    rows = torch.randn(*slots.shape, 7, dtype=torch.float64)
    share = torch.rand(slots.shape, dtype=torch.float64)
    due = torch.zeros(length, 7, dtype=torch.float64)
    for slot, row, part in zip(flat.tolist(), rows.flatten(0, 2), share.flatten(), strict=True):
        if slot != NOBODY:
            due[slot] += part * row
    torch.testing.assert_close(found.sums(rows, share), due)
    lse = torch.randn(slots.shape, dtype=torch.float64)
    lse[..., ::4] = -torch.inf
    total, weight = found.shares(lse)
    for slot in range(length):
        mine = lse.flatten()[flat == slot]
        expected = mine.logsumexp(0) if mine.numel() else torch.tensor(-torch.inf)
        assert total[slot] == pytest.approx(float(expected))
        if total[slot] > -torch.inf:
            assert float(weight[flat == slot].sum()) == pytest.approx(1.0)


def test_nothing_at_all() -> None:
    for shape, length in (((1, 2, 0), 3), ((1, 0, 4), 3), ((2, 2, 3), 0)):
        found = bags(torch.full(shape, NOBODY), length)
        assert found.sums(torch.zeros(*shape, 2)).shape == (shape[0] * length, 2)
