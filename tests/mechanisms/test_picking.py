"""Top-k and threshold attention: parity with matrices, and with attention where all are picked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from eyeline import (
    Causal,
    Explicit,
    Full,
    Pattern,
    PerHead,
    Tokens,
    sliding_window,
    streaming,
)
from eyeline.encodings import Rotary
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.functional import attention
from eyeline.layers import MultiHeadAttention
from eyeline.mechanisms.routed.picking import (
    Picking,
    Threshold,
    TopK,
    threshold_attention,
    topk_attention,
)
from eyeline.planning import cost, pairs
from eyeline.testing import Claims, check_mechanism
from eyeline.testing.kernel import largest_tensor
from eyeline.tokens import default_tokens
from layers.dense import drawn, random
from routing.route_oracle import dense, meetings

B, H, HK, L, S, E = 2, 4, 2, 19, 23, 5
FULL, CAUSAL = Full(), Causal()
Make = Callable[..., Picking]
MAKES: dict[str, Make] = {
    "topk": lambda pattern, **options: TopK(5, pattern=pattern, **options),
    "threshold": lambda pattern, **options: Threshold(0.07, pattern=pattern, **options),
}
ALL: dict[str, Make] = {
    "topk": lambda pattern: TopK(S, pattern=pattern),
    "threshold": lambda pattern: Threshold(1e-30, pattern=pattern),
}
BOTH = pytest.mark.parametrize("kind", MAKES)
SHAPED = PerHead([CAUSAL, FULL, sliding_window(3), CAUSAL & ~sliding_window(2)])
PATTERNS = [FULL, CAUSAL, sliding_window(7), SHAPED, Explicit(torch.ones(L, S).tril().bool())]


def heads(length: int = L, keys: int = S, width: int = E) -> list[Tensor]:
    shapes = ((B, H, length, E), (B, HK, keys, E), (B, HK, keys, width))
    return [random(*shape, seed=n).requires_grad_() for n, shape in enumerate(shapes)]


def packed() -> dict[str, Tokens]:
    """Documents, and pads on the left of one row and inside the other."""
    positions = torch.arange(S).repeat(B, 1)
    positions[0, :3], positions[1, 8:11] = -1, -1
    tokens = Tokens(positions, torch.where(positions < 0, -1, positions // 9))
    return {"q_tokens": tokens.last(L), "k_tokens": tokens}


def same(ours: Tensor, theirs: Tensor, atol: float = 1e-10) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


def same_gradients(one: Tensor, other: Tensor, given: list[Tensor]) -> None:
    same(one, other)
    above = random(*one.shape, seed=9)
    grads = (torch.autograd.grad((x * above).sum(), given) for x in (one, other))
    for ours, theirs in zip(*grads, strict=True):
        same(ours, theirs)


@BOTH
@pytest.mark.parametrize("pattern", [FULL, sliding_window(13)], ids=str)
def test_what_every_mechanism_shows(kind: str, pattern: Pattern) -> None:
    check_mechanism(lambda: MAKES[kind](pattern), Claims(lengths=(0, 23)))


@BOTH
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize(("tokens", "width"), [({}, 3), (packed(), E)], ids=["plain", "packed"])
def test_equals_the_matrix_of_what_is_picked(
    kind: str, pattern: Pattern, tokens: dict[str, Tokens], width: int
) -> None:
    ours, given = MAKES[kind](pattern), heads(width=width)
    q, k = (tokens["q_tokens"], tokens["k_tokens"]) if tokens else default_tokens(L, S)
    rules = [pattern.at(0, h) for h in range(H)]
    route = ours.route(*given[:2], **tokens)
    count = torch.stack([meetings(route, rule, q, k)[:, h] for h, rule in enumerate(rules)], 1)
    assert int(count.max()) == 1 and count.sum(-1).max() <= ours.most
    same_gradients(ours(*given, **tokens), dense(count, *given)[0], given)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("tokens", [{}, packed()], ids=["plain", "packed"])
def test_where_all_are_picked_it_is_attention(
    kind: str, pattern: Pattern, tokens: dict[str, Tokens]
) -> None:
    """With documents: to those of the query's own."""
    given = heads()
    expected = attention(*given, pattern, **tokens)
    same_gradients(ALL[kind](pattern)(*given, **tokens), expected, given)


@BOTH
def test_function_and_module_are_one(kind: str) -> None:
    given = heads()
    call: Any = topk_attention if kind == "topk" else threshold_attention
    ours, number = MAKES[kind](CAUSAL), 5 if kind == "topk" else 0.07
    assert torch.equal(call(*given, number, CAUSAL), ours(*given))
    mask = torch.ones(L, S).tril(S - L).bool()
    same(call(*given, number, mask), ours(*given))
    same(call(*given, number, CAUSAL, scale=E**-0.5), ours(*given))
    turned = call(given[0], -given[1], given[2], number, scale=-0.3)
    same(turned, call(*given, number, scale=0.3))


@BOTH
def test_the_past_does_not_know_the_future(kind: str) -> None:
    before, ours = [x.detach() for x in heads(S, S)], MAKES[kind](CAUSAL)
    assert ours.causality == "functional" and ours.no_cache is None
    for last in range(S - 1):
        after = [x.clone() for x in before]
        for x in after:
            x[:, :, last + 1 :] = 1e3 * x[:, :, last + 1 :].flip(-1) + 7
        one, two = (ours(*x)[:, :, : last + 1] for x in (before, after))
        same(one, two, 1e-12)
    inputs = heads(S, S)
    for grad in torch.autograd.grad(ours(*inputs)[:, :, 5].sum(), inputs):
        assert not grad[:, :, 6:].any()


@BOTH
@pytest.mark.parametrize("side", ["left", "right"])
def test_pads_change_nothing(kind: str, side: str) -> None:
    ours, tokens = MAKES[kind](CAUSAL), Tokens.padded([S, 11], side)
    real = tokens.positions[1] >= 0
    given = [x.detach() for x in heads(S, S)]
    alone = ours(*(x[1:, :, real] for x in given))
    for x in given:
        x[1][:, ~real] = 1e4
    out = ours(*given, q_tokens=tokens, k_tokens=tokens)
    same(out[1:, :, real], alone)
    assert not out[1][:, ~real].any()


@BOTH
@pytest.mark.parametrize("pattern", [CAUSAL, sliding_window(6), streaming(5, 2)], ids=str)
@pytest.mark.parametrize("step", [1, 8])
def test_decoding_equals_the_whole(kind: str, pattern: Pattern, step: int) -> None:
    layer = MultiHeadAttention(
        16, H, num_kv_heads=HK, position=Rotary(4), mechanism=MAKES[kind](pattern)
    ).double()
    drawn(layer)
    layer.requires_grad_(False)
    x, tokens = random(B, 29, 16), Tokens.padded([29, 25], "left")
    whole, cache = layer(x, q_tokens=tokens), layer.new_cache(B)
    for start in range(0, 29, step):
        now = Tokens(tokens.positions[:, start : start + step])
        cache.cache.advance(now)
        got = layer(x[:, start : start + step], q_tokens=now, cache=cache)
        real = now.positions >= 0
        same(got[real], whole[:, start : start + step][real])


@BOTH
def test_patterns_that_look_ahead_have_no_cache(kind: str) -> None:
    for pattern in (FULL, Causal() | sliding_window(3) | Explicit(torch.ones(3, 3).bool())):
        ours = MAKES[kind](pattern)
        assert ours.causality == "none"
        with pytest.raises(NotSupported, match="may look ahead: read the whole text at once"):
            MultiHeadAttention(16, H, mechanism=ours).new_cache()


@BOTH
def test_dropout(kind: str) -> None:
    ours, given = MAKES[kind](CAUSAL, dropout=0.3), [x.detach() for x in heads()]
    plain = MAKES[kind](CAUSAL)(*given)
    assert torch.equal(ours.eval()(*given), plain)
    ours.train()
    torch.manual_seed(0)
    outs = torch.stack([ours(*given) for _ in range(40)])
    assert (outs[0] - plain).abs().max() > 0.1
    assert ((outs.mean(0) - plain).abs() <= 5 * outs.std(0) / 40**0.5 + 1e-12).all()


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_smaller_types(kind: str, dtype: torch.dtype) -> None:
    ours, given = MAKES[kind](CAUSAL), [x.detach().to(dtype) for x in heads()]
    found = ours(*given)
    count = meetings(ours.route(*given[:2]), CAUSAL, *default_tokens(L, S))
    exact = dense(count, *(x.double() for x in given))[0]
    assert found.dtype == dtype
    same(found.double(), exact, 20 * torch.finfo(dtype).eps)


@BOTH
def test_nobody_to_look_at(kind: str) -> None:
    ours, given = MAKES[kind](CAUSAL & ~sliding_window(3)), heads()
    tokens = Tokens.padded([0, S])
    out = ours(*given, q_tokens=tokens.last(L), k_tokens=tokens)
    assert not out[0].any()
    for grad in torch.autograd.grad(out.square().sum(), given):
        assert grad.isfinite().all()
    assert not MAKES[kind](FULL)(*heads(3, 0)).any()
    assert MAKES[kind](FULL)(*heads(0, 5)).shape == (B, H, 0, E)


@BOTH
@pytest.mark.parametrize("pattern", [FULL, CAUSAL], ids=str)
def test_memory_is_linear(kind: str, pattern: Pattern) -> None:
    ours, n = MAKES[kind](pattern), 4099
    given = [torch.randn(1, 1, n, 4, requires_grad=True) for _ in range(3)]

    def run() -> None:
        ours(*given).sum().backward()

    assert largest_tensor(run) < n**2 / 4


@BOTH
def test_explain(kind: str) -> None:
    given = [x.detach() for x in heads(S, S)]
    found = MAKES[kind](CAUSAL).explain(*given[:2])
    assert found["causality"].startswith("functional: keys are picked among those that came")
    assert found["queries that look at somebody"] == "100.0%"
    ours = MAKES[kind](FULL)
    assert ours.explain(*given[:2])["causality"].startswith("none: under full")
    sharp = 30 * given[0], given[1]
    q, k = default_tokens(S, S)
    count = meetings(ours.route(*sharp), FULL, q, k)
    seen = float(count.any(-2).double().mean())
    assert seen < 1 and ours.explain(*sharp)["keys that are looked at"] == f"{seen:.1%}"
    assert ours.explain(*(x.detach() for x in heads(0, 0)[:2]))


@pytest.mark.parametrize("pattern", [FULL, CAUSAL, sliding_window(7), SHAPED], ids=str)
def test_work(pattern: Pattern) -> None:
    """Scores of all allowed pairs to pick by, and attention over the picked ones."""
    sizes = {"heads": H, "kv_heads": HK, "head_dim": E, "value_dim": 3}
    ours, given = TopK(5, pattern=pattern), heads(S, S, 3)
    count = (ours.route(*given[:2]).keys >= 0).sum()
    every = sum(pairs(pattern.at(0, h), S) for h in range(H))
    found = cost(ours, S, **sizes)  # type: ignore[arg-type]
    assert found.pairs * B == count
    assert found.computed == H * S * 5
    assert found.multiplications == every * E + found.pairs * (E + 3)
    assert found.computed_flops >= found.flops
    least = cost(Threshold(0.2, pattern=pattern), S, **sizes)  # type: ignore[arg-type]
    assert least == found  # at most 1 / 0.2 = 5 keys


@BOTH
def test_batch_rows_and_heads_are_alone(kind: str) -> None:
    ours, given = MAKES[kind](CAUSAL), [x.detach() for x in heads()]
    whole = ours(*given)
    for h in range(H):
        own = h // (H // HK)
        alone = ours(given[0][:, h : h + 1], *(x[:, own : own + 1] for x in given[1:]))
        same(alone, whole[:, h : h + 1])
    tensors = given[1][:1], given[2][:1]
    turned = (x.mT.contiguous().mT for x in tensors)
    spread = [x.expand(B, -1, -1, -1) for x in turned]
    broadcast = ours(given[0], *spread)
    same(broadcast, ours(given[0], *(x.contiguous() for x in spread)))


@BOTH
@pytest.mark.slow
@torch.no_grad()
def test_a_compiled_layer_breaks_the_graph_where_keys_are_picked(kind: str) -> None:
    layer = MultiHeadAttention(16, H, mechanism=MAKES[kind](CAUSAL))
    x = torch.randn(2, 13, 16)
    torch._dynamo.reset()
    same(torch.compile(layer, backend="eager")(x), layer(x), 1e-6)
    torch._dynamo.reset()


def test_autocast() -> None:
    layer = MultiHeadAttention(16, H, mechanism=TopK(40, pattern=CAUSAL))
    x = torch.randn(2, 13, 16, requires_grad=True)
    exact = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        half = layer(x)
    assert half.dtype == torch.bfloat16
    same(half.float(), exact, 0.03)
    half.sum().backward()


def test_mistakes() -> None:
    for k in (0, True, 2.0):
        with pytest.raises(InvalidArgument, match="topk k="):
            TopK(k)  # type: ignore[arg-type]
    for t in (0.0, 1.0, -0.1, True, "1"):
        with pytest.raises(InvalidArgument, match="threshold t="):
            Threshold(t)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="probability"):
        TopK(3, dropout=1.0)
    with pytest.raises(InvalidArgument, match="topk k=0"):
        topk_attention(*heads(), 0)
    with pytest.raises(InvalidArgument, match="23 queries but 19 keys"):
        TopK(3, pattern=CAUSAL)(*heads(S, L))
    assert TopK(3)(*heads(S, L)).shape == (B, H, S, E)
    with pytest.raises(InvalidArgument, match="4"):
        MultiHeadAttention(16, 2, mechanism=TopK(3, pattern=SHAPED))


def test_text() -> None:
    assert repr(TopK(3, pattern=CAUSAL)) == "TopK(k=3, causal)"
    assert repr(Threshold(0.02, dropout=0.1)) == "Threshold(t=0.02, full, dropout=0.1)"
