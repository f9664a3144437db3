"""Every answer to "does a token look ahead?" agrees with the dense mask."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eyeline import (
    Causal,
    Explicit,
    Full,
    Global,
    Llama,
    LlamaConfig,
    Pattern,
    PerHead,
    Predicate,
    Random,
    Sinks,
    Tokens,
    Window,
    dense_mask,
    looks_ahead,
    streaming,
)
from eyeline.errors import InvalidArgument
from eyeline.measuring.comparison import refuse_looking_ahead
from eyeline.patterns.ahead import never_looks_ahead
from eyeline.planning import pair_ahead
from eyeline.training.language import check_causal
from strategies import HEADS, patterns, sequences, varying_patterns

LENGTH = 43


def later(tokens: Tokens) -> torch.Tensor:
    return tokens.positions[..., None, :] > tokens.positions[..., :, None]


def by_mask(pattern: Pattern, tokens: Tokens) -> bool:
    mask = dense_mask(pattern, q_tokens=tokens, k_tokens=tokens, batch=1, heads=HEADS)
    return bool((mask & later(tokens)).any())


@given(varying_patterns, sequences(LENGTH))
def test_equals_the_dense_mask(pattern: Pattern, tokens: Tokens) -> None:
    assert looks_ahead(pattern, tokens=tokens, heads=HEADS) == by_mask(pattern, tokens)


@given(varying_patterns)
def test_all_who_ask_agree(pattern: Pattern) -> None:
    """The structure where it knows, the comparison, and the pair that training names."""
    tokens = Tokens.arange(0, LENGTH)
    try:
        pattern.check_length(LENGTH)
    except InvalidArgument:  # meant for another length
        return
    all_agree(pattern, by_mask(pattern, tokens))


def all_agree(pattern: Pattern, ahead: bool) -> None:
    if never_looks_ahead(pattern):
        assert not ahead
    pair = pair_ahead(pattern, LENGTH, heads=HEADS)
    assert (pair is not None) == ahead
    if pair is not None:
        mask = dense_mask(pattern, LENGTH, batch=1, heads=HEADS)[0].any(0)
        query, key = pair
        assert query < key and bool(mask[query, key]) and not bool(mask[:key, :key].triu(1).any())
    if ahead:
        with pytest.raises(InvalidArgument, match="look at later ones"):
            refuse_looking_ahead("it", pattern, LENGTH, heads=HEADS)
    else:
        refuse_looking_ahead("it", pattern, LENGTH, heads=HEADS)


@given(patterns, st.lists(st.integers(0, LENGTH), min_size=2, max_size=3))
def test_several_rows(pattern: Pattern, lengths: list[int]) -> None:
    tokens = Tokens.padded(lengths, length=LENGTH)
    rows = [by_mask(pattern, tokens.row(b)) for b in range(len(lengths))]
    assert looks_ahead(pattern, tokens=tokens) is any(rows)


@pytest.mark.parametrize("ahead", [False, True])
def test_what_the_structure_does_not_know(ahead: bool) -> None:
    """A mask and a callable, with one pair ahead at the far end or none."""
    length = 300
    mask = torch.ones(length, length).tril().bool()
    mask[length - 2, length - 1] = ahead

    def callable_(
        b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor
    ) -> torch.Tensor:
        return mask[q, k]

    by_callable = Predicate(callable_, per_batch=False, per_head=False)
    for pattern in (Explicit(mask), by_callable, Explicit(mask) | Window(3, 0)):
        assert not never_looks_ahead(pattern)
        assert looks_ahead(pattern, length) is ahead
        assert pair_ahead(pattern, length) == ((length - 2, length - 1) if ahead else None)


def test_only_one_head_looks_ahead() -> None:
    pattern = PerHead([Causal(), Causal() | Sinks(2)])
    assert looks_ahead(pattern, 3, heads=2) and not looks_ahead(pattern, 1, heads=2)
    with pytest.raises(InvalidArgument, match="per head"):
        looks_ahead(pattern, 3)
    with pytest.raises(InvalidArgument):
        looks_ahead(pattern, 3, heads=3)


def test_what_varies_by_length_is_asked_at_the_whole_length() -> None:
    for seed in range(9):
        pattern = Random(1, 16, seed=seed, head=0)
        dense = dense_mask(pattern, 600).triu(1)
        assert looks_ahead(pattern, 600) == bool(dense.any())


def test_a_million_tokens_take_no_million_squared() -> None:
    million = 1_000_000
    assert not looks_ahead(streaming(256, 4) | (Causal() & Global([7, 999_999])), million)
    assert looks_ahead(Causal() | Global([999_999]), million)
    assert looks_ahead(Full(), million)


def test_only_the_later_half_of_a_long_text_is_seen_too_early() -> None:
    """Training used to ask about the first 64 tokens."""
    config = LlamaConfig(20, 8, 8, layers=1, heads=2, kv_heads=1, head_dim=4, trained_length=200)
    model = Llama(config, Causal() | Global([100]))
    with pytest.raises(InvalidArgument, match="token 0 would see token 100"):
        check_causal(model, 101)


@pytest.mark.parametrize("given", [{}, {"length": 3, "tokens": Tokens.arange(0, 3)}])
def test_a_length_or_tokens(given: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument, match="a length, or tokens"):
        looks_ahead(Causal(), **given)  # type: ignore[arg-type]
