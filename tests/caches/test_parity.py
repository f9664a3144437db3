"""Reading in steps through a cache equals reading at once, and keeps exactly what is needed."""

from __future__ import annotations

from functools import reduce
from operator import or_

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eyeline.caches import Cache, Evicting, Growing, cache_for, needed_slots
from eyeline.functional import attention
from eyeline.patterns import (
    Causal,
    Chunks,
    Dilated,
    FixedColumns,
    Global,
    Pattern,
    Sinks,
    Strided,
    Window,
    sliding_window,
    streaming,
)
from eyeline.testing.cache import LENGTH, Inputs, layout_for, random_inputs, read_in_steps
from eyeline.tokens import Tokens

W = 7

PATTERNS: list[Pattern] = [
    Causal(),
    sliding_window(1),
    sliding_window(W),
    streaming(W, 3),
    streaming(2, 5),
    Causal() & Chunks(W),
    Causal() & (Chunks(W) | Sinks(2)),
    Causal() & ~Window(2, 0),
    Causal() & ~sliding_window(3),
    Causal() & (sliding_window(W) & ~Sinks(3) | Chunks(3)),
    Causal() & Strided(W),
    Causal() & Dilated(3, 2, 0),
    Causal() & (Chunks(W) | FixedColumns(W, 2)),
    sliding_window(4) | Causal() & Global([2, 11]),
]


def new_cache(pattern: Pattern, batch: int, kind: str) -> Cache:
    layout = layout_for(random_inputs(batch))
    return Growing(pattern, layout) if kind == "growing" else Evicting(pattern, layout)


def in_steps(cache: Cache, tokens: Tokens, steps: list[int], inputs: Inputs) -> Tensor:
    """Attention step by step. After each step the cache holds exactly what is needed."""

    def look(past: Tokens, new: Tokens) -> None:
        if isinstance(cache, Evicting):
            check_kept(cache, past, new)

    return read_in_steps(cache, tokens, inputs, steps, look=look)


def check_kept(cache: Evicting, past: Tokens, new: Tokens) -> None:
    """In each row: all that is needed from now on, and nothing that was not needed by the step."""
    for row in range(past.batch if past.batch is not None else 1):
        known, latest = past.row(row), new.row(row).positions
        after = int(known.positions.max()) + 1
        before = int(latest[latest >= 0].min()) if (latest >= 0).any() else after
        stored = cache._tokens.positions.expand(cache.layout.batch, -1)[row]
        kept = stored[stored >= 0].tolist()
        asked = {p: cache.pattern.needed(known, p) for p in (before, after)}
        allowed = {p: set(known.positions[mask].tolist()) for p, mask in asked.items()}
        assert len(kept) == len(set(kept))
        assert allowed[after] <= set(kept) <= allowed[before] | set(latest.tolist())


def stepped(step: int, length: int = LENGTH) -> list[int]:
    return [min(step, length - start) for start in range(0, length, step)]


@pytest.mark.parametrize("kind", ["growing", "evicting"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("step", [1, 2, W - 1, W, W + 1, 3 * W])
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_steps_equal_one_run(pattern: Pattern, step: int, padded: bool, kind: str) -> None:
    batch = 3 if padded else 2
    tokens = Tokens.padded([LENGTH, LENGTH - 4, 5]) if padded else Tokens.arange(0, LENGTH)
    inputs = random_inputs(batch)
    want = attention(*inputs, pattern, q_tokens=tokens, k_tokens=tokens)
    got = in_steps(new_cache(pattern, batch, kind), tokens, stepped(step), inputs)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["growing", "evicting"])
def test_documents_stay_apart_in_a_cache(kind: str) -> None:
    pattern = Causal() & (Window(4, 0) | Sinks(2))
    tokens = Tokens.packed([5, 0, 1, 11, 13], length=LENGTH)
    inputs = random_inputs(2)
    want = attention(*inputs, pattern, q_tokens=tokens, k_tokens=tokens)
    for step in (1, 3, W):
        got = read_in_steps(new_cache(pattern, 2, kind), tokens, inputs, stepped(step))
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


ATOMS = st.one_of(
    st.builds(Window, st.integers(0, 6) | st.none(), st.integers(0, 6) | st.none()),
    st.builds(Sinks, st.integers(0, 4)),
    st.builds(Chunks, st.integers(1, 9)),
    st.just(Causal()),
)
RULES = st.recursive(
    ATOMS,
    lambda inner: (
        st.builds(lambda a, b: a & b, inner, inner)
        | st.builds(lambda parts: reduce(or_, parts), st.lists(inner, min_size=1, max_size=3))
        | st.builds(lambda a: ~a, inner)
    ),
    max_leaves=5,
)


@settings(max_examples=60, deadline=None)
@given(
    rule=RULES,
    steps=st.lists(st.integers(1, 11), min_size=1, max_size=8),
    short=st.integers(0, 9),
    kind=st.sampled_from(["growing", "evicting"]),
)
def test_any_rule_in_any_steps(rule: Pattern, steps: list[int], short: int, kind: str) -> None:
    pattern, length = Causal() & rule, sum(steps)
    tokens = Tokens.padded([length, max(length - short, 0)])
    inputs = random_inputs(2, length)
    want = attention(*inputs, pattern, q_tokens=tokens, k_tokens=tokens)
    got = in_steps(new_cache(pattern, 2, kind), tokens, steps, inputs)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("pattern", "slots"),
    [
        (Causal(), None),
        (streaming(512, 4), 516),
        (sliding_window(1), 1),
        (sliding_window(4097), 4097),
        (Causal() & (Window(9, 0) | Sinks(700)), 710),
        (Causal() | Sinks(5), None),
        (Causal() & ~Window(3, 0), None),
        (Causal() & Sinks(11), 12),
        (Causal() & Strided(8), None),
        (Causal() & Dilated(64, 3, 0), 192 + 1),
        (Causal() & FixedColumns(64, 1), None),
        (sliding_window(100) | Causal() & Global([3, 77]), 102),
        (Causal() & Global(5), 6),
    ],
    ids=str,
)
def test_slots_are_counted_from_the_pattern(pattern: Pattern, slots: int | None) -> None:
    assert needed_slots(pattern) == slots
    cache = cache_for(pattern, layers=1, batch=1, num_kv_heads=1, head_dim=2, dtype=torch.float32)
    assert isinstance(cache, Growing if slots is None else Evicting)


def test_bytes_stay_the_same_once_the_window_is_full() -> None:
    cache = cache_for(
        streaming(W, 3), layers=2, batch=1, num_kv_heads=3, head_dim=5, dtype=torch.bfloat16
    )
    seen = []
    for position in range(5 * W):
        cache.advance(Tokens.arange(position, position + 1))
        for layer in range(2):
            cache.append(layer, *torch.randn(2, 1, 3, 1, 5).bfloat16())
        seen.append(cache.nbytes)
    assert seen[W + 2 :] == [(W + 3) * 2 * 3 * (5 + 5) * 2] * (5 * W - W - 2)
    assert seen[:3] == [120, 240, 360]
