"""FlexAttention, compiled on the CPU, given our blocks and masks: its outputs are ours.

Each pattern is compiled on its own, ten seconds each.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from eyeline.functional import attention, explain
from eyeline.patterns import (
    Blocks,
    Causal,
    Chunks,
    Dilated,
    Explicit,
    FixedColumns,
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
    parse,
    streaming,
)  # fmt: skip
from eyeline.planning import plan
from eyeline.planning.flex_blocks import block_mask
from eyeline.tokens import Tokens


def tensors(
    queries: int, keys: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (4, queries), (2, keys), (2, keys)
    return tuple(torch.randn(2, h, n, 16, generator=generator).to(dtype) for h, n in shapes)  # type: ignore[return-value]


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        explain(*tensors(9, 9), Full())["flex"] != "could serve",
        reason="torch cannot compile FlexAttention here",
    ),
]

LENGTH = 389
ATOMS: list[Pattern] = [
    Full(), Causal(), Window(7, 3), Window(None, 5), Sinks(9) & Causal(), Chunks(53, 1, None),
    Strided(7), Dilated(3, 20, None), FixedColumns(31, 2) | Window(0, 0), Global(5),
    Global([0, 100, 101, 300]) | Window(2, 2), Grid(1, LENGTH, 9), ~Causal(),
    Blocks([[1, 0], [1, 1]], 200), Random(2, 16, seed=3),
    PerHead([Causal(), Window(9, 9), Full(), Strided(5)]),
    (Causal() | Sinks(2)) & ~Chunks(7) | Window(0, 0),
    parse("bigbird(block=16, random=2, global_blocks=1)"),
]  # fmt: skip


def assert_same(pattern: Pattern, queries: int, keys: int, tokens: Tokens | None = None) -> None:
    q, k, v = tensors(queries, keys)
    theirs = attention(q, k, v, pattern, q_tokens=tokens, k_tokens=tokens, backend="flex")
    mine = attention(q, k, v, pattern, q_tokens=tokens, k_tokens=tokens, backend="tiles")
    torch.testing.assert_close(theirs, mine, rtol=0, atol=5e-6)


@pytest.mark.parametrize("pattern", ATOMS, ids=str)
def test_every_atom(pattern: Pattern) -> None:
    assert_same(pattern, LENGTH, LENGTH)


def test_bound_patterns() -> None:
    mask = torch.rand(2, 4, LENGTH, LENGTH, generator=torch.Generator().manual_seed(0)) < 0.2
    mask[1, 2, 7] = False
    assert_same(Explicit(mask), LENGTH, LENGTH)
    assert_same(Predicate(lambda b, h, i, j: (i - j) % (h + 2) == b), LENGTH, LENGTH)


def test_the_last_queries() -> None:
    assert_same(streaming(37, 3), 131, LENGTH)


def test_pads() -> None:
    assert_same(streaming(37, 3) | ~Causal(), LENGTH, LENGTH, Tokens.padded([LENGTH, 53]))


def test_documents() -> None:
    tokens = Tokens.packed([100, 1, 0, 200], length=LENGTH)
    assert_same(Causal(), LENGTH, LENGTH, tokens)


def test_half_types() -> None:
    q, k, v = tensors(LENGTH, LENGTH, torch.bfloat16)
    out = attention(q, k, v, streaming(37, 3), backend="flex")
    right = attention(q.double(), k.double(), v.double(), streaming(37, 3))
    torch.testing.assert_close(out.double(), right, rtol=0, atol=2e-2)


def test_the_same_shape_is_not_compiled_twice() -> None:
    q, k, v = tensors(LENGTH, LENGTH)
    before = counters["stats"]["unique_graphs"]
    for _ in range(2):
        # New objects each time, equal in value, and tokens that were not seen before.
        tokens = Tokens.arange(0, LENGTH)
        rule = streaming(41, 3)
        attention(q, k, v, rule, q_tokens=tokens, k_tokens=tokens, backend="flex")
    assert counters["stats"]["unique_graphs"] - before == 1


def test_two_graphs_serve_all_lengths() -> None:
    torch.compiler.reset()
    compiled = torch.compile(flex_attention, fullgraph=True)
    before = counters["stats"]["unique_graphs"]
    for length in (389, 300, 257, 700, 1030):
        q, k, v = (x[:, :2] for x in tensors(length, length))
        out = compiled(q, k, v, block_mask=block_mask(plan(Causal(), length)))
        torch.testing.assert_close(out, attention(q, k, v, Causal()), rtol=0, atol=5e-6)
    assert counters["stats"]["unique_graphs"] - before <= 2


def test_their_own_block_mask_gives_the_same_bits() -> None:
    torch.compiler.reset()
    compiled = torch.compile(flex_attention, fullgraph=True, dynamic=False)
    q, k, v = (x[:, :2] for x in tensors(LENGTH, LENGTH))
    theirs = create_block_mask(
        lambda b, h, i, j: (i >= j) & (i - j < 37), None, None, LENGTH, LENGTH, device="cpu"
    )
    rule = Causal() & Window(36, 0)
    first = compiled(q, k, v, block_mask=theirs)
    assert torch.equal(first, compiled(q, k, v, block_mask=block_mask(rule, LENGTH)))


def test_a_callable_changes_the_scores() -> None:
    q, k, v = tensors(LENGTH, LENGTH)

    def further_is_less(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score - 0.1 * (h + 1) * (i - j).abs()

    found = attention(q, k, v, Causal(), score_mod=further_is_less, backend="flex")
    right = attention(q, k, v, Causal(), score_mod=further_is_less, backend="reference")
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found, attention(q, k, v, Causal()), atol=1e-2)
