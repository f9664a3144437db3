"""Pooling: of real tokens alone, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from eyeline.errors import InvalidArgument, NotSupported
from eyeline.models.pooling import pooled
from eyeline.tokens import Tokens

HIDDEN = torch.randn(3, 7, 5, generator=torch.Generator().manual_seed(0))
LENGTHS = [7, 3, 1]
BY_HAND = {
    "mean": lambda rows: rows.mean(0),
    "cls": lambda rows: rows[0],
    "max": lambda rows: rows.amax(0),
}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("how", BY_HAND)
def test_only_real_tokens_count(how: Any, side: str) -> None:
    tokens, hidden = Tokens.padded(LENGTHS, side), HIDDEN.clone()
    hidden[tokens.positions < 0] = torch.nan
    got = pooled(hidden, tokens, how)
    for row, length in enumerate(LENGTHS):
        own = HIDDEN[row, 7 - length :] if side == "left" else HIDDEN[row, :length]
        torch.testing.assert_close(got[row], BY_HAND[how](own))


@pytest.mark.parametrize("how", BY_HAND)
def test_without_tokens_and_with_shared_ones(how: Any) -> None:
    want = torch.stack([BY_HAND[how](row) for row in HIDDEN])
    torch.testing.assert_close(pooled(HIDDEN, how=how), want)
    torch.testing.assert_close(pooled(HIDDEN, Tokens.arange(0, 7), how), want)


@pytest.mark.parametrize("how", BY_HAND)
def test_a_row_of_nobody_is_0_with_finite_gradients(how: Any) -> None:
    hidden = HIDDEN.clone().requires_grad_(True)
    got = pooled(hidden, Tokens.padded([7, 0, 3]), how)
    assert not got[1].any()
    got.sum().backward()
    assert hidden.grad is not None and hidden.grad.isfinite().all() and not hidden.grad[1].any()


def test_a_mean_of_many_halves_is_exact() -> None:
    """A sum in float16 ends at 65,504."""
    hidden = torch.ones(1, 70_001, 3, dtype=torch.float16)
    assert torch.equal(pooled(hidden), torch.ones(1, 3, dtype=torch.float16))


def test_what_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="how='sum': it is one of mean, cls, max"):
        pooled(HIDDEN, how="sum")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"hidden \(7, 5\)"):
        pooled(HIDDEN[0])
    with pytest.raises(InvalidArgument, match="tokens"):
        pooled(HIDDEN, Tokens.arange(0, 6))
    with pytest.raises(NotSupported, match="packed documents"):
        pooled(HIDDEN, Tokens.packed([3, 4]))
