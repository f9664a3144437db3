"""Reading in steps through caches equals reading at once: layers, stacks and decoders."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from eyeline import Causal, Pattern, Tokens, sliding_window, streaming
from eyeline.caches import Cache, Evicting, Growing
from eyeline.encodings import Learned, Rotary, Sinusoidal
from eyeline.layers import BlockShape, LayerCache, MultiHeadAttention
from eyeline.mechanisms import Additive, Exact, ExtraKeys
from eyeline.scores import ALiBi, OffsetBias, Shaw, Softcap, T5Bias
from layers.dense import drawn, random

W, D, LENGTH = 5, 24, 29
PATTERNS = [Causal(), sliding_window(W), streaming(W, 2)]
POSITIONS: dict[str, Callable[[], object]] = {
    "none": lambda: None,
    "rotary": lambda: Rotary(6, layout="interleaved"),
    "sinusoidal": lambda: Sinusoidal(D),
    "learned": lambda: Learned(LENGTH, D),
    "alibi and softcap": lambda: [ALiBi(4), Softcap(3.0)],
    "t5": lambda: T5Bias(4, bidirectional=False),
    "shaw": lambda: Shaw(6, 3),
    "everything": lambda: [Rotary(6), Learned(LENGTH, D), OffsetBias(4, 7)],
}


def stepped(step: int) -> list[int]:
    return [min(step, LENGTH - start) for start in range(0, LENGTH, step)]


def part(tokens: Tokens, start: int, stop: int) -> Tokens:
    return Tokens(tokens.positions[..., start:stop])


def in_steps(
    call: Callable[[Tensor, Tokens], Tensor], x: Tensor, tokens: Tokens, steps: list[int]
) -> Tensor:
    out, start = [], 0
    with torch.no_grad():
        for step in steps:
            out.append(call(x[:, start : start + step], part(tokens, start, start + step)))
            start += step
    return torch.cat(out, 1)


def real(tokens: Tokens, x: Tensor) -> Tensor:
    return (tokens.positions >= 0).expand(x.shape[:2])


def same(got: Tensor, want: Tensor, tokens: Tokens) -> None:
    kept = real(tokens, want)
    torch.testing.assert_close(got[kept], want[kept], rtol=0, atol=1e-10)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("step", [1, 2, W, 3 * W])
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("position", POSITIONS)
def test_layer(position: str, pattern: Pattern, step: int, padded: bool) -> None:
    layer = MultiHeadAttention(
        D,
        4,
        num_kv_heads=2,
        pattern=pattern,
        position=POSITIONS[position](),  # type: ignore[arg-type]
    ).double()
    drawn(layer)
    tokens = Tokens.padded([LENGTH, LENGTH - 4, 5]) if padded else Tokens.arange(0, LENGTH)
    x, cache = random(3, LENGTH, D), layer.new_cache(3)

    def call(x: Tensor, tokens: Tokens) -> Tensor:
        cache.cache.advance(tokens)
        return layer(x, q_tokens=tokens, cache=cache)  # type: ignore[no-any-return]

    same(in_steps(call, x, tokens, stepped(step)), layer(x, q_tokens=tokens), tokens)


@pytest.mark.parametrize("kind", ["additive", "extra keys"])
def test_other_mechanisms(kind: str) -> None:
    pattern = streaming(W, 2)
    mechanism = (
        Additive(4, 6, hidden=3, pattern=pattern)
        if kind == "additive"
        else ExtraKeys(Exact(pattern), 3, num_kv_heads=2, head_dim=6)
    )
    layer = MultiHeadAttention(D, 4, num_kv_heads=2, mechanism=mechanism).double()
    drawn(layer)
    tokens, x, cache = Tokens.padded([LENGTH, 5]), random(2, LENGTH, D), layer.new_cache(2)
    assert isinstance(cache.cache, Evicting)

    def call(x: Tensor, tokens: Tokens) -> Tensor:
        cache.cache.advance(tokens)
        return layer(x, q_tokens=tokens, cache=cache)  # type: ignore[no-any-return]

    same(in_steps(call, x, tokens, stepped(2)), layer(x, q_tokens=tokens), tokens)


def stack_caches(caches: list[Cache]) -> list[type]:
    return [type(cache) for cache in caches]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("at", ["input", "first", "each"])
def test_stack_with_a_pattern_for_each_layer(at: str, padded: bool) -> None:
    stack = BlockShape(D, 4, 31, kv_heads=2, norms="rms", feed="swiglu").stack(
        4,
        [Causal(), streaming(W, 2), Causal(), sliding_window(W)],
        position=[Rotary(6), Learned(LENGTH, D), ALiBi(4)],
        position_at=at,  # type: ignore[arg-type]
    )
    drawn(stack.double())
    tokens = Tokens.padded([LENGTH, 11]) if padded else Tokens.arange(0, LENGTH)
    x, caches = random(2, LENGTH, D), stack.new_caches(2)
    assert stack_caches(caches) == [Growing, Evicting, Evicting]
    assert [cache.layout.layers for cache in caches] == [2, 1, 1]

    def call(x: Tensor, tokens: Tokens) -> Tensor:
        return stack(x, q_tokens=tokens, caches=caches)  # type: ignore[no-any-return]

    same(in_steps(call, x, tokens, [7, 1, 1, 12, 3, 5]), stack(x, q_tokens=tokens), tokens)


def test_positions_follow_the_caches_when_they_are_not_given() -> None:
    stack = BlockShape(D, 4, 31).stack(2, Causal(), position=Sinusoidal(D))
    drawn(stack.double())
    x, caches = random(2, LENGTH, D), stack.new_caches(2)

    def call(x: Tensor, tokens: Tokens) -> Tensor:
        return stack(x, caches=caches)  # type: ignore[no-any-return]

    tokens = Tokens.arange(0, LENGTH)
    same(in_steps(call, x, tokens, [3, 1, 1, 19, 5]), stack(x), tokens)
    caches = stack.new_caches(2)
    left = Tokens.padded([7, 4])
    with torch.no_grad():
        stack(x[:, :7], q_tokens=left, caches=caches)
        got = stack(x[:, 7:9], caches=caches)
        want = stack(x[:, :9], q_tokens=Tokens.padded([9, 6]))[:, 7:]
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)


@pytest.mark.parametrize("projected", [False, True])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_decoder_with_kept_cross_keys(norm: str, projected: bool) -> None:
    shape = BlockShape(D, 4, 31, norm=norm)  # type: ignore[arg-type]
    decoder = shape.decoder(2, [Causal(), streaming(W, 1)], position=Sinusoidal(D))
    drawn(decoder.double())
    x, memory = random(2, LENGTH, D), random(2, 13, D, seed=1)
    memory_tokens, tokens = Tokens.padded([13, 6], side="right"), Tokens.padded([LENGTH, 17])
    seen = decoder.project(memory, memory_tokens=memory_tokens) if projected else memory
    caches = decoder.new_caches(2)

    def call(x: Tensor, tokens: Tokens) -> Tensor:
        return decoder(  # type: ignore[no-any-return]
            x, seen, q_tokens=tokens, memory_tokens=memory_tokens, caches=caches
        )

    want = decoder(x, memory, q_tokens=tokens, memory_tokens=memory_tokens)
    same(in_steps(call, x, tokens, stepped(3)), want, tokens)
    changed = memory.clone()
    changed[1, 6:] = 1e4
    assert torch.equal(decoder(x, changed, q_tokens=tokens, memory_tokens=memory_tokens), want)


def test_a_layer_may_use_any_place_of_a_cache() -> None:
    layer = MultiHeadAttention(D, 4, pattern=Causal()).double()
    drawn(layer)
    shared = BlockShape(D, 4, 31).stack(3, Causal()).double().new_caches(1)[0]
    x, tokens = random(1, 7, D), Tokens.arange(0, 7)
    with torch.no_grad():
        shared.advance(tokens)
        outs = [layer(x, q_tokens=tokens, cache=LayerCache(shared, place)) for place in range(3)]
    for out in outs:
        torch.testing.assert_close(out, layer(x), rtol=0, atol=1e-12)


def test_caches_under_autocast() -> None:
    stack = BlockShape(D, 4, 31).stack(2, Causal(), position=Sinusoidal(D)).eval()
    x, caches, tokens = random(2, LENGTH, D).float(), stack.new_caches(2), Tokens.arange(0, LENGTH)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        whole = stack(x)
        steps = [stack(x[:, i : i + 5], caches=caches) for i in range(0, LENGTH, 5)]
    assert torch.cat(steps, 1).dtype == whole.dtype
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=0.05, atol=0.05)
    assert caches[0].position == tokens.length
