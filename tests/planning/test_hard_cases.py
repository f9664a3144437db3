"""Plans and counts in situations that once failed: empty sides, user's patterns, other devices."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from eyeline import attention, cost, dense_mask, max_path_length, pairs, plan
from eyeline.errors import InvalidArgument
from eyeline.patterns import (
    Causal,
    Dilated,
    Explicit,
    Global,
    Pattern,
    PerHead,
    Random,
    Strided,
    Window,
    parse,
)  # fmt: skip
from eyeline.testing.kernel import largest_tensor
from eyeline.tokens import Points, Tokens

NONE = Tokens.arange(0, 0)


@pytest.mark.parametrize("pattern", [Strided(3), Dilated(2, 3, 3), Global([1, 4])], ids=str)
def test_one_empty_side(pattern: Pattern) -> None:
    some = Tokens.arange(0, 5)
    for q, k in ((NONE, some), (some, NONE), (NONE, NONE)):
        assert pairs(pattern, q_tokens=q, k_tokens=k) == 0
        assert plan(pattern, q_tokens=q, k_tokens=k).area == 0
        assert cost(pattern, q_tokens=q, k_tokens=k).pairs == 0
    empty, full = torch.zeros(1, 1, 0, 4), torch.ones(1, 1, 5, 4)
    out = attention(full, empty, empty, pattern, q_tokens=some, k_tokens=NONE, backend="tiles")
    assert torch.equal(out, torch.zeros(1, 1, 5, 4))


@dataclass(frozen=True)
class Listed(Pattern):
    """A user's pattern with a field that does not hash; it says so in ``bound``."""

    offsets: list[int]

    @property
    def bound(self) -> tuple[Pattern, ...]:
        return (self,)

    def allows(self, q: Points, k: Points) -> Tensor:
        return torch.isin(q.position - k.position, torch.tensor(self.offsets))


@dataclass(frozen=True)
class Masked(Pattern):
    """A user's pattern that holds a tensor, whose == is a tensor too."""

    mask: Tensor

    @property
    def bound(self) -> tuple[Pattern, ...]:
        return (self,)

    def allows(self, q: Points, k: Points) -> Tensor:
        return self.mask[q.position.clamp(min=0), k.position.clamp(min=0)]


def test_bound_patterns_of_users_need_not_hash_or_compare() -> None:
    listed = Causal() & (Listed([0, 3, 9]) | Strided(7))
    assert pairs(listed, 80) == int(dense_mask(listed, 80).sum())
    a, b = (Masked(torch.rand(50, 50) < share) for share in (0.2, 0.6))
    assert pairs(a | Strided(3) & b, 50) == int(dense_mask(a | Strided(3) & b, 50).sum())
    assert cost(PerHead([a, b]), 50, heads=2).pairs == int(a.mask.sum() + b.mask.sum())


@dataclass(frozen=True)
class Numbers(Pattern):
    """A mistake: 0 and 1 instead of False and True."""

    def allows(self, q: Points, k: Points) -> Tensor:
        return (k.position <= q.position).int()


@pytest.mark.parametrize("of", [lambda p: p, lambda p: ~p & Causal(), lambda p: p | Causal()],
                         ids=["alone", "negated", "united"])  # fmt: skip
def test_answers_that_are_not_bool_are_refused(of: object) -> None:
    pattern = of(Numbers())  # type: ignore[operator]
    with pytest.raises(InvalidArgument, match="int32, it must be bool"):
        dense_mask(pattern, 8)
    with pytest.raises(InvalidArgument, match="int32, it must be bool"):
        pattern.mask_mod()(0, 0, torch.arange(8)[:, None], torch.arange(8))


def test_far_positions_take_no_memory() -> None:
    tokens = Tokens(torch.arange(64) * (1 << 40))
    pattern = Causal() & Random(2, 16, head=0)
    assert largest_tensor(lambda: pairs(pattern, q_tokens=tokens, k_tokens=tokens)) < 1 << 20
    mask = dense_mask(pattern, q_tokens=tokens, k_tokens=tokens)
    assert pairs(pattern, q_tokens=tokens, k_tokens=tokens) == int(mask.sum())


def test_any_default_device() -> None:
    expected = pairs(Causal() & Strided(9), 80), max_path_length(Window(3, 0), 80)
    torch.set_default_device("meta")
    try:
        assert pairs(Causal() & Strided(9), 80) == expected[0]
        assert max_path_length(Window(3, 0), 80) == expected[1]
        assert cost(Causal(), 80).pairs == 3240
        assert "3,240" in plan(Causal(), 80).summary or plan(Causal(), 80).area >= 3240
        assert str(plan(Global([3, 9]), 80))
    finally:
        torch.set_default_device(None)


def test_the_greatest_numbers_have_a_text() -> None:
    for pattern in (Strided(10**18), Window(2**60 - 1, 0)):
        assert parse(str(pattern)) == pattern


def test_an_explicit_mask_per_head_keeps_every_key() -> None:
    mask = torch.rand(1, 2, 8, 8) < 0.5
    assert Explicit(mask).needed(Tokens.arange(0, 8), 8).all()
