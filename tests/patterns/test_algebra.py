"""& | ~ on patterns are & | ~ on masks, whatever is combined."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from eyeline.errors import InvalidArgument
from eyeline.patterns import And, Causal, Full, Pattern, Predicate, SameSegment, Sinks, Window
from eyeline.planning import dense_mask
from eyeline.testing.pattern import (
    needed_keys_are_kept,
    pairs_are_counted,
    plans_hold_each_pair_once,
    values_behave,
    verdicts_are_sound,
)  # fmt: skip
from eyeline.tokens import Tokens
from strategies import patterns, token_pairs


@given(patterns, patterns)
def test_masks_combine(a: Pattern, b: Pattern) -> None:
    tokens = Tokens.arange(0, 13)  # said, so that a grid of another size is a rule like others

    def mask(pattern: Pattern) -> Tensor:
        return dense_mask(pattern, q_tokens=tokens, k_tokens=tokens)

    left, right = mask(a), mask(b)
    assert torch.equal(mask(a & b), left & right)
    assert torch.equal(mask(a | b), left | right)
    assert torch.equal(mask(~a), ~left)


@settings(max_examples=150)
@given(patterns, token_pairs())
def test_everything_derived_agrees(pattern: Pattern, tokens: tuple[Tokens, Tokens]) -> None:
    verdicts_are_sound(pattern, *tokens)
    plans_hold_each_pair_once(pattern, *tokens)
    pairs_are_counted(pattern, *tokens)
    needed_keys_are_kept(pattern, *tokens)
    values_behave(pattern, *tokens)


def test_not_leaves_nobody_unseen() -> None:
    tokens = Tokens.listed([-1, 0, 1])
    mask = dense_mask(~Causal(), q_tokens=tokens, k_tokens=tokens)
    assert mask.int().tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 0]]


def test_and_or_not_words_are_refused() -> None:
    with pytest.raises(TypeError, match=r"& \| ~"):
        assert Causal() and Full()
    with pytest.raises(TypeError):
        assert not Causal()
    with pytest.raises(TypeError):
        Causal() & torch.ones(3, 3, dtype=torch.bool)  # type: ignore[operator]
    with pytest.raises(InvalidArgument, match="two"):
        And((Causal(),))


def test_nested_chains_are_flat() -> None:
    a, b, c = Causal(), Sinks(3), Window(1, 2)
    assert (a & b) & c == a & (b & c) == And((And((a, b)), c))
    assert hash((a & b) & c) == hash(a & (b & c))


def test_what_a_compound_depends_on_is_found() -> None:
    predicate = Predicate(lambda b, h, q, k: q >= k, per_head=False)
    assert (Causal() & ~predicate).varies_by == {"batch"}
    assert (Causal() & ~predicate).bound == (predicate,)
    assert not (Full() | SameSegment()).compares_positions
    assert (Full() & Causal()).compares_positions
