"""Every kind of pattern goes through torch.compile, and gives what the reference gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import pytest
import torch
from torch import Tensor

from compile.traced import Counted, assert_same, tensors
from eyeline import (
    Blocks,
    Causal,
    Chunks,
    Dilated,
    Explicit,
    Full,
    Global,
    Grid,
    Pattern,
    PerHead,
    Predicate,
    Random,
    SameSegment,
    Sinks,
    Tokens,
    Window,
    attention,
    attention_with_lse,
    bigbird,
    longformer,
    parse,
    sliding_window,
    streaming,
)  # fmt: skip
from eyeline.patterns import register
from eyeline.tokens import Points

MASK = torch.rand(67, 67, generator=torch.Generator().manual_seed(1)) < 0.3
MASK[5], MASK[:, 7] = False, False
LAYOUT = torch.rand(23, 23, generator=torch.Generator().manual_seed(2)) < 0.3
SHARED = Explicit(MASK)
PER_HEAD = torch.rand(2, 4, 67, 67, generator=torch.Generator().manual_seed(3)) < 0.4


FULL = Full()


@register
@final
@dataclass(frozen=True)
class EveryNth(Pattern):
    """A user's own pattern."""

    step: int
    inner: Pattern = FULL

    def allows(self, q: Points, k: Points) -> Tensor:
        return ((q.position - k.position) % self.step == 0) & self.inner.allows(q, k)


# One of each way in which a pattern is written, carried or looked at.
PATTERNS = (
    Full(), Causal(), Window(None, 5), SameSegment(), Dilated(5, 6, 2), Global([0, 17, 66]),
    Blocks([[1, 0], [1, 1]], 37), Grid(1, 67, 2), Random(2, 7), bigbird(5, 1, 1),
    (Causal() | Sinks(2)) & ~Chunks(7) | Window(0, 0), Causal() & ~Window(0, 0),
    PerHead([Causal(), Full(), Window(2, 2), streaming(4, 1)]), SHARED, Explicit(PER_HEAD),
    SHARED & Window(9, 9) | SHARED & Causal() | Explicit(~MASK.T) & Sinks(9),
    Blocks(LAYOUT, 3) & Window(40, None), EveryNth(3), EveryNth(3, Causal() | Sinks(2)),
)  # fmt: skip


def call(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, backend: str = "auto") -> Tensor:
    return attention(q, k, v, pattern, backend=backend)


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_parity(pattern: Pattern) -> None:
    x = tensors(67)
    assert_same(Counted(call)(*x, pattern), call(*x, pattern, "reference"), x)


def test_another_pattern_is_not_taken_for_the_first() -> None:
    """One function is called with patterns that differ in numbers only."""
    compiled, x = Counted(call), tensors(67)
    for pattern in (
        sliding_window(3), sliding_window(4), sliding_window(5), Window(1, 2), Window(2, None),
        EveryNth(3), EveryNth(4), EveryNth(4, Causal()),
    ):  # fmt: skip
        assert_same(compiled(*x, pattern), call(*x, pattern, "reference"))


@pytest.mark.parametrize(
    "make",
    [
        lambda: sliding_window(5),
        lambda: longformer(3, [0, 4]),
        lambda: parse("causal & (window(left=3, right=0) | sinks(1))"),
        lambda: PerHead([Causal(), Full(), Window(2, 2), Sinks(1)]),
        lambda: Blocks([[1, 0], [1, 1]], 10),
        lambda: Explicit(torch.ones(19, 19, dtype=torch.bool).tril()),
    ],
)
def test_made_inside(make: Callable[[], Pattern]) -> None:
    compiled, x = Counted(lambda q, k, v: attention(q, k, v, make())), tensors(19)
    assert_same(compiled(*x), attention(*x, make(), backend="reference"), x)


def test_the_pattern_of_a_layer_may_be_changed() -> None:
    from eyeline.mechanisms import Exact

    layer, x = Exact(sliding_window(3)), tensors(19)
    compiled = Counted(layer)
    for pattern in (sliding_window(3), sliding_window(5), Causal()):
        layer.pattern = pattern
        assert_same(compiled(*x), call(*x, pattern, "reference"))


@pytest.mark.parametrize(("heads", "key_heads"), [(4, 4), (4, 1), (1, 1)])
def test_grouped_heads(heads: int, key_heads: int) -> None:
    x = tensors(7, 67, heads=heads, key_heads=key_heads)
    assert_same(Counted(call)(*x, streaming(9, 2)), call(*x, streaming(9, 2), "reference"), x)


@pytest.mark.parametrize("pattern", [Causal(), Full()], ids=str)
def test_fewer_queries_than_keys(pattern: Pattern) -> None:
    x = tensors(19, 67)
    assert_same(Counted(call)(*x, pattern), call(*x, pattern, "reference"), x)


@pytest.mark.parametrize("pattern", [Causal(), sliding_window(9)], ids=str)
def test_lse_has_gradients(pattern: Pattern) -> None:
    def both(q: Tensor, k: Tensor, v: Tensor, backend: str = "auto") -> Tensor:
        out, lse = attention_with_lse(q, k, v, pattern, backend=backend)
        return torch.cat((out, lse.unsqueeze(-1)), -1)

    x = tensors(67)
    assert_same(Counted(both, "aot_eager")(*x), both(*x, "reference"), x)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0)])
def test_nobody(shape: tuple[int, int]) -> None:
    x = tensors(*shape)
    out = Counted(call)(*x, Full())
    assert out.shape == (2, 4, shape[0], 3)
    assert not out.any()


def test_after_a_graph_break_a_callable_is_served() -> None:
    pattern = Predicate(lambda b, h, q, k: (q - k) % 3 == 0)

    def around(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q * 2, k, v, pattern) + 1

    torch._dynamo.reset()
    x = tensors(67)
    compiled = torch.compile(around, backend="eager")
    assert_same(compiled(*x), around(*x), x)


def test_tokens_say_where_a_pattern_is_drawn() -> None:
    """A pattern that varies by length is settled when the graph runs."""
    tokens = Tokens.arange(3, 70)
    compiled = Counted(
        lambda q, k, v: attention(q, k, v, Random(2, 7), q_tokens=tokens, k_tokens=tokens)
    )
    x = tensors(67)
    right = attention(*x, Random(2, 7, length=70), q_tokens=tokens, k_tokens=tokens)
    assert_same(compiled(*x), right, x)
