"""Keys that are kept stand where they stood when they were made: caches and projected memories."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from eyeline import Causal, Pattern, Tokens, Window, sliding_window
from eyeline.encodings import Rotary, Sinusoidal
from eyeline.errors import InvalidArgument
from eyeline.layers import BlockShape, DecoderBlock, FeedForward, MultiHeadAttention
from layers.dense import drawn, random

D, L, S = 24, 7, 11
CAUSAL = Causal()


def layer(pattern: Pattern = CAUSAL, **options: object) -> MultiHeadAttention:
    made = MultiHeadAttention(D, 4, pattern=pattern, **options).double()  # type: ignore[arg-type]
    drawn(made)
    return made


OTHERS = {
    "later": Tokens.arange(1, L + 1),
    "fewer": Tokens.arange(0, L - 1),
    "of each row": Tokens.padded([L, L - 1]),
    "documents": Tokens.packed([3, L - 3]),
}


@pytest.mark.parametrize("kind", OTHERS)
@torch.no_grad()
def test_a_step_has_the_tokens_that_advance_was_given(kind: str) -> None:
    made, x = layer(position=Rotary(6)), random(2, L, D)
    cache, tokens, others = made.new_cache(2), Tokens.arange(0, L), OTHERS[kind]
    cache.cache.advance(tokens)
    with pytest.raises(InvalidArgument, match=r"q_tokens .* cache.advance was given"):
        made(x[:, : others.length], q_tokens=others, cache=cache)
    out = made(x, q_tokens=Tokens.arange(0, L), cache=cache)  # equal ones are the same
    torch.testing.assert_close(out, made(x), rtol=0, atol=1e-12)


@torch.no_grad()
def test_a_step_needs_an_advance() -> None:
    made, x = layer(sliding_window(3)), random(1, L, D)
    cache, tokens = made.new_cache(1), Tokens.arange(0, 1)
    with pytest.raises(InvalidArgument, match=r"advance\(tokens\) comes first"):
        made(x[:, :1], q_tokens=tokens, cache=cache)
    cache.cache.advance(tokens)
    made(x[:, :1], q_tokens=tokens, cache=cache)
    with pytest.raises(InvalidArgument, match=r"cache\.advance was given"):
        made(x[:, 1:2], q_tokens=Tokens.arange(1, 2), cache=cache)
    with pytest.raises(InvalidArgument, match="layer 0 of 1"):
        made(x[:, 1:2], q_tokens=tokens, cache=cache)


@torch.no_grad()
def test_compiled_steps_are_checked_without_more_graphs() -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("eager")
    made, x = layer(sliding_window(3)).eval(), random(1, L, D)
    compiled, cache = torch.compile(made, backend=counter), made.new_cache(1)
    want, frames = made(x), []
    for start in range(L):
        tokens = Tokens.arange(start, start + 1)
        cache.cache.advance(tokens)
        one = x[:, start : start + 1]
        torch.testing.assert_close(
            compiled(one, q_tokens=tokens, cache=cache), want[:, start : start + 1]
        )
        frames.append(counter.frame_count)
    assert frames[3:] == frames[3:4] * (L - 3)
    with pytest.raises(InvalidArgument, match="layer 0 of 1"):
        compiled(one, q_tokens=tokens, cache=cache)
    with pytest.raises(InvalidArgument, match=r"cache\.advance was given"):
        compiled(one, q_tokens=Tokens.arange(99, 100), cache=cache)


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("position", [None, Rotary(6), Sinusoidal(D)], ids=str)
def test_projected_keys_stand_where_they_were_made(position: object) -> None:
    made, x, memory = (
        layer(Window(2, 2), position=position),
        random(2, L, D),
        random(2, S, D, seed=1),
    )
    q_tokens, k_tokens = Tokens.arange(5, 5 + L), Tokens.arange(3, 3 + S)
    kept = made.project(memory, k_tokens=k_tokens)
    want = made(x, memory, q_tokens=q_tokens, k_tokens=k_tokens)
    close(made(x, kept, q_tokens=q_tokens), want)
    close(made(x, kept, q_tokens=q_tokens, k_tokens=Tokens.arange(3, 3 + S)), want)
    close(made(x, kept), made(x, memory, k_tokens=k_tokens))
    close(
        made.weights(x, kept, q_tokens=q_tokens),
        made.weights(x, memory, q_tokens=q_tokens, k_tokens=k_tokens),
    )
    for call in (made, made.weights):
        with pytest.raises(InvalidArgument, match=r"k_tokens .* project"):
            call(x, kept, q_tokens=q_tokens, k_tokens=Tokens.arange(0, S))


def test_keys_that_were_turned_by_default_stand_from_0_on() -> None:
    x, memory = random(2, L, D), random(2, S, D, seed=1)
    q_tokens, others = Tokens.arange(3, 3 + L), Tokens.arange(3, 3 + S)
    turning = layer(position=Rotary(6))
    with pytest.raises(InvalidArgument, match=r"k_tokens .* project"):
        turning(x, turning.project(memory), q_tokens=q_tokens, k_tokens=others)
    plain = layer()  # nothing was turned: they may be said later
    want = plain(x, memory, q_tokens=q_tokens, k_tokens=others)
    close(plain(x, plain.project(memory), q_tokens=q_tokens, k_tokens=others), want)


def test_project_takes_the_tokens_of_the_keys() -> None:
    with pytest.raises(InvalidArgument, match=r"k_tokens has shape \(4,\)"):
        layer().project(random(2, S, D), k_tokens=Tokens.arange(0, 4))


@pytest.mark.parametrize("position", [None, Rotary(6)], ids=str)
def test_a_decoder_knows_the_tokens_of_a_projected_memory(position: object) -> None:
    cross = layer(Window(6, 6), position=position)
    block = DecoderBlock(layer(), cross, FeedForward(D, 13)).double()
    drawn(block)
    x, memory, tokens = random(2, L, D), random(2, S, D, seed=1), Tokens.padded([S, 4], "right")
    want = block(x, memory, memory_tokens=tokens)
    close(block(x, cross.project(memory, k_tokens=tokens)), want)
    close(block(x, cross.project(memory)), block(x, memory))
    stack = BlockShape(D, 4, 13).decoder(2).double()
    seen = stack.project(memory, memory_tokens=tokens)
    close(stack(x, seen), stack(x, memory, memory_tokens=tokens))


@pytest.mark.parametrize("tokens", [None, Tokens.arange(3, 3 + S)], ids=["default", "given"])
@torch.no_grad()
def test_a_whole_graph_takes_the_tokens_of_a_projected_memory(tokens: Tokens | None) -> None:
    cross = layer(Window(6, 6), position=Rotary(6))
    block = DecoderBlock(layer(), cross, FeedForward(D, 13)).double()
    drawn(block)
    x, kept = random(2, L, D), cross.project(random(2, S, D, seed=1), k_tokens=tokens)
    torch._dynamo.reset()
    compiled = torch.compile(block, backend="eager", fullgraph=True)
    close(compiled(x, kept), block(x, kept))
    close(compiled(x, kept, memory_tokens=tokens), block(x, kept))
    close(
        cross(x, kept, q_tokens=Tokens.arange(0, L)),
        cross(x, kept, q_tokens=Tokens.arange(0, L), k_tokens=kept.tokens),
    )
