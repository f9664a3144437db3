"""Heads, batch rows and lengths that follow patterns of their own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import create_mask

from eyeline.caches import cache_for
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.functional import attention, attention_weights
from eyeline.patterns import (
    EMPTY,
    FULL,
    PARTIAL,
    Blocks,
    Bounds,
    Causal,
    Chunks,
    Explicit,
    Full,
    Global,
    Grid,
    Pattern,
    PerHead,
    Predicate,
    Random,
    Sinks,
    Strided,
    Window,
    bigbird,
    sliding_window,
)  # fmt: skip
from eyeline.planning import dense_mask
from eyeline.planning.dense import settled
from eyeline.tokens import Points, Tokens
from strategies import HEADS, token_pairs, varying_patterns

THREE = PerHead([Causal(), Window(1, 1), Sinks(2)])


def numbers(*shape: int) -> Tensor:
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64
    )


def test_each_head_has_the_mask_of_its_member() -> None:
    mask = dense_mask(THREE, 11, batch=2, heads=3)
    for head, member in enumerate(THREE.members):
        assert torch.equal(mask[0, head], dense_mask(member, 11))
        assert torch.equal(mask[1, head], dense_mask(member, 11))


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
@pytest.mark.parametrize("key_heads", [4, 2, 1], ids=str)
def test_attention_follows_each_head(backend: str, key_heads: int) -> None:
    """Grouped heads too: members are counted by query heads."""
    members = [Causal(), Chunks(5), Full(), sliding_window(3) | Sinks(1)]
    q, k, v = numbers(2, 4, 23, 3), numbers(2, key_heads, 23, 3), numbers(2, key_heads, 23, 5)
    out = attention(q, k, v, PerHead(members), backend=backend)
    for head, member in enumerate(members):
        of = slice(head // (4 // key_heads), head // (4 // key_heads) + 1)
        alone = attention(q[:, head : head + 1], k[:, of], v[:, of], member, backend="reference")
        torch.testing.assert_close(out[:, head : head + 1], alone, rtol=1e-10, atol=1e-10)


def test_expressions_keep_heads_apart() -> None:
    tokens = Tokens.packed([5, 6])
    pattern = ~THREE | Window(0, 0)
    mask = dense_mask(pattern, q_tokens=tokens, k_tokens=tokens, batch=1, heads=3)
    for head, member in enumerate(THREE.members):
        alone = ~member | Window(0, 0)
        assert torch.equal(mask[0, head], dense_mask(alone, q_tokens=tokens, k_tokens=tokens))
        assert pattern.at(0, head) == alone
        assert not mask[0, head, 5:, :5].any(), "~ shows another document"


def test_members_may_differ_by_row_and_carry_tensors() -> None:
    rule = Predicate(lambda b, h, q, k: q >= k + b + h)
    table = Explicit(torch.rand(2, 1, 7, 7, generator=torch.Generator().manual_seed(0)) < 0.5)
    pattern = PerHead([rule, table, PerHead([Full(), Full(), Causal()])])
    assert pattern.varies_by == {"batch", "head"}
    assert pattern.bound == (rule, table)
    assert str(pattern) == "per_head([predicate(#0), explicit(#1), per_head([full, full, causal])])"
    mask = dense_mask(pattern, 7, batch=2, heads=3)
    i, j = torch.arange(7)[:, None], torch.arange(7)
    for row in range(2):
        assert torch.equal(mask[row, 0], i >= j + row)
        assert torch.equal(mask[row, 1], table.mask[row, 0])
        assert torch.equal(mask[row, 2], i >= j)


def test_a_list_for_other_heads_is_refused() -> None:
    x = torch.zeros(1, 2, 5, 4)
    with pytest.raises(InvalidArgument, match="has 3 patterns; the call has 2 query heads"):
        attention(x, x, x, Causal() & THREE)
    with pytest.raises(InvalidArgument, match="has 3 patterns; the call has 4 query heads"):
        attention(torch.zeros(1, 4, 5, 4), x, x, THREE)
    with pytest.raises(InvalidArgument, match="has 3 patterns; the call has 2"):
        dense_mask(THREE, 5, batch=1, heads=2)
    with pytest.raises(InvalidArgument, match="3 patterns, none for head 3"):
        THREE.at(0, 3)


def test_one_answer_for_all_heads_is_refused() -> None:
    zero = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(InvalidArgument, match=r"differs per head: .*pattern\.at\(batch, head\)"):
        THREE.allows(Points.of(zero), Points.of(zero))
    with pytest.raises(InvalidArgument, match="differs per head"):
        dense_mask(THREE | Full(), 5)


def test_a_verdict_is_what_all_heads_agree_on() -> None:
    start = torch.tensor([0, 4, 8])
    q = Bounds.of_positions(start + 8, start + 9)
    k = Bounds.of_positions(start, start + 1)
    assert PerHead([Causal(), Full()]).verdict(q, k).tolist() == [FULL] * 3
    assert PerHead([Window(3, 3), Window(1, 1)]).verdict(q, k).tolist() == [EMPTY] * 3
    assert PerHead([Window(3, 3), Full()]).verdict(q, k).tolist() == [PARTIAL] * 3
    assert PerHead([Window(7, 7)] * 2).verdict(q, k).tolist() == [PARTIAL] * 3


def test_keys_are_kept_while_some_head_needs_them() -> None:
    pattern = PerHead([sliding_window(3), sliding_window(6), Causal() & Sinks(1)])
    needed = pattern.needed(Tokens.arange(0, 20), 15)
    assert needed.nonzero()[:, 0].tolist() == [0, *range(10, 20)]


@pytest.mark.parametrize(
    "pattern",
    [
        THREE, THREE & ~Strided(3) | Window(0, 0), Random(2, 3, length=17, seed=1),
        PerHead([Random(1, 4, length=17), Blocks([[1, 0], [1, 1]], 9), Grid(17, 1, 2)]),
        bigbird(3, 1, 1).of_length(17), Random(0, 3, length=17), Global([3, 8]) & Chunks(5, 1, 0),
    ],
    ids=str,
)  # fmt: skip
def test_mask_mods_choose_by_head(pattern: Pattern) -> None:
    """Within FlexAttention's own vmap, and called with tensors that broadcast."""
    heads, index = 3, torch.arange(17)
    right = dense_mask(pattern, 17, batch=2, heads=heads)
    mod = pattern.mask_mod()
    assert torch.equal(create_mask(mod, 2, heads, 17, 17, device="cpu"), right)
    for head in range(heads):
        assert torch.equal(mod(0, head, index[:, None], index).expand(17, 17), right[0, head])
    narrow = (torch.tensor(x, dtype=torch.int32) for x in (1, 2, 5, 4))
    assert mod(*narrow).item() == right[1, 2, 5, 4].item()


@settings(max_examples=60)
@given(varying_patterns, token_pairs())
def test_whatever_varies_is_fixed_by_at_and_of_length(
    pattern: Pattern, tokens: tuple[Tokens, Tokens]
) -> None:
    q, k = tokens
    mask = dense_mask(pattern, q_tokens=q, k_tokens=k, batch=1, heads=HEADS)
    for head in range(HEADS):
        one = settled(pattern.at(0, head), q, k)
        other = settled(pattern, q, k).at(0, head)
        assert one == other and not one.varies_by
        assert torch.equal(dense_mask(one, q_tokens=q, k_tokens=k), mask[0, head])


def test_the_length_is_that_of_queries_and_keys() -> None:
    free = Random(1, 4)
    assert settled(free, Tokens.listed([3, -1]), Tokens.listed([7, 0])) == free.of_length(8)
    assert settled(free, Tokens.listed([30]), Tokens.listed([7, 0])) == free.of_length(31)
    assert settled(free, Tokens.listed([-1]), Tokens.listed([])) == free.of_length(0)
    assert settled(Causal(), Tokens.listed([-1]), Tokens.listed([])) == Causal()
    both = PerHead([Causal() & free, free.of_length(3)])
    fixed = settled(both, Tokens.arange(0, 9), Tokens.arange(0, 9))
    assert fixed == PerHead([Causal() & free.of_length(9), free.of_length(3)])


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
@pytest.mark.parametrize("key_heads", [4, 1], ids=str)
def test_attention_draws_for_each_head_and_row(backend: str, key_heads: int) -> None:
    """Each head its own draw; each row of a batch the draw of its own length."""
    lengths, pattern = [23, 14], Random(2, 5, seed=3) | Window(0, 0)
    tokens = Tokens.padded(lengths, side="left")
    q, k, v = numbers(2, 4, 23, 3), numbers(2, key_heads, 23, 3), numbers(2, key_heads, 23, 3)
    out = attention(q, k, v, pattern, q_tokens=tokens, k_tokens=tokens, backend=backend)
    outputs = set()
    for row, length in enumerate(lengths):
        for head in range(4):
            real, of = slice(23 - length, 23), head // (4 // key_heads)
            one = (x[row, h, real][None, None] for x, h in ((q, head), (k, of), (v, of)))
            alone = attention(*one, pattern.at(row, head).of_length(length), backend="reference")
            torch.testing.assert_close(out[row, head, real], alone[0, 0], rtol=1e-10, atol=1e-10)
            outputs.add(str(settled(pattern.at(row, head), tokens.row(row), tokens.row(row))))
    assert len(outputs) == 8


def test_weights_show_the_draw() -> None:
    q = numbers(1, 2, 23, 3)
    weight = attention_weights(q, q, Random(2, 5))
    for head in range(2):
        right = dense_mask(Random(2, 5, head=head, length=23), 23)
        assert torch.equal(weight[0, head] > 0, right)


def test_a_cache_needs_a_length() -> None:
    def cache(pattern: Pattern) -> object:
        return cache_for(
            pattern, layers=1, batch=1, num_kv_heads=2, head_dim=4, dtype=torch.float32
        )

    for free in (Random(1, 4), Causal() & (Window(3, 0) | Random(1, 4, head=0)), bigbird(4, 1, 1)):
        with pytest.raises(NotSupported, match=r"pattern\.of_length\(n\)"):
            cache(free)
        assert cache(free.of_length(100))


@settings(max_examples=20)
@given(st.integers(1, 40), st.integers(0, 9))
def test_a_step_of_a_fixed_length_equals_the_whole(size: int, seed: int) -> None:
    pattern = Causal() & (Random(1, size, seed=seed) | Window(2, 0))
    fixed, q = pattern.of_length(41), numbers(1, 2, 41, 3)
    whole = attention(q, q, q, fixed)
    for at in (0, 7, 40):
        seen = q[:, :, : at + 1]
        step = attention(seen[:, :, -1:], seen, seen, fixed)
        torch.testing.assert_close(step, whole[:, :, at : at + 1], rtol=1e-10, atol=1e-10)
