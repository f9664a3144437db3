"""Tokens inside torch.compile: given, made inside, and found again by what they hold."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from compile.traced import Counted, assert_same, tensors
from eyeline import Causal, Full, SameSegment, Tokens, attention, sliding_window, streaming
from eyeline.errors import InvalidArgument
from eyeline.exact.operator import recent_tokens

PADDED = Tokens.padded([11, 19])


def by_positions(q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
    tokens = Tokens(positions)
    return attention(q, k, v, streaming(5, 2), q_tokens=tokens, k_tokens=tokens)


def test_made_inside() -> None:
    x = tensors(19)
    assert_same(Counted(by_positions)(*x, PADDED.positions), by_positions(*x, PADDED.positions), x)


def test_made_of_a_mask_inside() -> None:
    def call(q: Tensor, k: Tensor, v: Tensor, there: Tensor) -> Tensor:
        return by_positions(q, k, v, torch.where(there, there.cumsum(-1) - 1, -1))

    x, there = tensors(19), PADDED.positions >= 0
    assert_same(Counted(call, "aot_eager")(*x, there), by_positions(*x, PADDED.positions), x)


def test_queries_are_the_last_of_given_keys() -> None:
    def call(q: Tensor, k: Tensor, v: Tensor, tokens: Tokens) -> Tensor:
        return attention(q, k, v, Causal(), k_tokens=tokens)

    x = tensors(5, 19)
    assert_same(Counted(call)(*x, PADDED), call(*x, PADDED), x)


def test_cross_attention_with_documents() -> None:
    q_tokens, k_tokens = Tokens.packed([3, 4]), Tokens.packed([11, 8])

    def call(q: Tensor, k: Tensor, v: Tensor, a: Tokens, b: Tokens) -> Tensor:
        return attention(q, k, v, Full(), q_tokens=a, k_tokens=b)

    x = tensors(7, 19)
    found, right = (f(*x, q_tokens, k_tokens) for f in (Counted(call), call))
    assert_same(found, right, x)


def test_segments_within_documents() -> None:
    tokens = replace(Tokens.packed([11, 8]), segments=torch.arange(19) // 4)

    def call(q: Tensor, k: Tensor, v: Tensor, a: Tokens) -> Tensor:
        return attention(q, k, v, Causal() | SameSegment(), q_tokens=a, k_tokens=a)

    x = tensors(19)
    assert_same(Counted(call)(*x, tokens), call(*x, tokens), x)


def test_what_no_token_can_be_is_an_error_when_it_runs() -> None:
    compiled, x = Counted(by_positions), tensors(19)
    compiled(*x, torch.arange(19))
    with pytest.raises(InvalidArgument, match="positions hold -5"):
        compiled(*x, torch.arange(19) - 5)


def test_new_positions_in_the_memory_of_old_ones_are_new() -> None:
    """A compiled graph uses its memory again: the operator must not look at where numbers lie."""
    compiled, x = Counted(by_positions), tensors(19)
    positions = torch.arange(19)
    for shift in (3, 4, 5):
        positions[:] = (torch.arange(19) - shift).clamp(min=-1)
        assert_same(compiled(*x, positions), by_positions(*x, positions.clone()), x)


def test_equal_tokens_are_the_same_object() -> None:
    positions, documents = torch.arange(100, 119), torch.zeros(19, dtype=torch.int64)
    plain, packed = recent_tokens(positions, None), recent_tokens(positions, documents)
    assert plain is not packed
    assert recent_tokens(positions.clone(), None) is plain
    assert recent_tokens(positions.clone(), documents.clone()) is packed
    assert recent_tokens(positions[None], None) is not plain
    positions[3] = 7
    assert int(plain.positions[3]) == 103
    assert recent_tokens(positions, None) is not plain


def test_only_the_last_few_tokens_are_kept() -> None:
    first = recent_tokens(torch.arange(19), None)
    for start in range(1, 40):
        recent_tokens(torch.arange(start, start + 19), None)
    assert recent_tokens(torch.arange(19), None) is not first


def test_what_was_remembered_in_inference_serves_training() -> None:
    compiled, x = Counted(by_positions), tensors(19)
    with torch.inference_mode():
        compiled(*x, torch.arange(4, 23))
    found = compiled(*x, torch.arange(4, 23))
    tokens = Tokens.arange(4, 23)
    right = attention(*x, streaming(5, 2), q_tokens=tokens, k_tokens=tokens)
    assert_same(found, right, x)


def test_omitted_tokens_need_no_tensor() -> None:
    """A graph for them holds the operator and nothing that is as long as the sequence."""
    torch._dynamo.reset()
    graphs = []

    def look(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return graph

    compiled = torch.compile(
        lambda q, k, v: attention(q, k, v, sliding_window(3)), fullgraph=True, backend=look
    )
    compiled(*tensors(19))
    (targets,) = graphs
    assert torch.ops.eyeline.attention.default in targets
    assert not [target for target in targets if "arange" in str(target)]
