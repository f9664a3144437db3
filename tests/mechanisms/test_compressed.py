"""Compressed keys against the formula written group by group; pads, lengths, the future, caches."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eyeline import Causal, Full, Pattern, SameSegment, Tokens, Window, sliding_window
from eyeline.encodings import Rotary
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.layers import MultiHeadAttention
from eyeline.mechanisms import Compressed, Heads, recipe
from layers.dense import drawn, random

B, H, HK, L, E = 2, 6, 3, 13, 5
KINDS = [
    (by, pattern, local)
    for by in ("conv", "mean", "max")
    for pattern in (Full(), Causal())
    for local in (False, True)
]
every_kind = pytest.mark.parametrize(("by", "pattern", "local"), KINDS, ids=str)


FULL = Full()


def made(by: str, pattern: Pattern = FULL, local: bool = False, **options: object) -> Compressed:
    ours = Compressed(
        int(options.pop("factor", 4)), by=by, num_kv_heads=HK, head_dim=E,  # type: ignore[arg-type, call-overload]
        pattern=pattern, local=local, **options,
    )  # fmt: skip
    drawn(ours.double())
    return ours


def heads(length: int = L, keys: int = L) -> list[Tensor]:
    return [
        random(B, H, length, E), random(B, HK, keys, E, seed=1), random(B, HK, keys, E, seed=2)
    ]  # fmt: skip


def same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def group(ours: Compressed, which: str, x: Tensor, taps: list[int], head: int) -> Tensor:
    """One key of those (m, E) of a group that stand at these places in it."""
    if ours.by == "mean":
        return x.mean(0)
    if ours.by == "max":
        return x.max(0).values
    conv = getattr(ours, which)
    each = [row @ conv.weight[head, tap] for row, tap in zip(x, taps, strict=True)]
    return torch.stack(each).sum(0) + conv.bias[head]


def formula(
    ours: Compressed, inputs: list[Tensor], q_at: list[int], k_at: list[int], row: int = 0
) -> Tensor:
    """One batch row: queries and keys at these positions, -1 for nobody. (H, L, E)."""
    query, key, value = (x[row] for x in inputs)
    causal, f = ours.pattern == Causal(), ours.factor
    out = []
    for h in range(H):
        own, rows = h // (H // HK), []
        for i, at in enumerate(q_at):
            keys, values = [], []
            for g in sorted({p // f for p in k_at if p >= 0}):
                slots = [s for s, p in enumerate(k_at) if p >= 0 and p // f == g]
                if ours.local and g == at // f:
                    slots = [s for s in slots if not causal or k_at[s] <= at]
                    keys += list(key[own, slots])
                    values += list(value[own, slots])
                elif not causal or g * f + f - 1 <= at:
                    taps = [k_at[s] % f for s in slots]
                    keys.append(group(ours, "key", key[own, slots], taps, own))
                    values.append(group(ours, "value", value[own, slots], taps, own))
            if at < 0 or not keys:
                rows.append(torch.zeros(E, dtype=query.dtype) + 0 * query[h, i])
                continue
            weight = (torch.stack(keys) @ query[h, i] / math.sqrt(E)).softmax(0)
            rows.append(weight @ torch.stack(values))
        out.append(torch.stack(rows) if rows else query[h])
    return torch.stack(out)


@every_kind
@pytest.mark.parametrize("length", [1, 4, 11])
def test_formula(by: str, pattern: Pattern, local: bool, length: int) -> None:
    ours = made(by, pattern, local)
    inputs = [x.requires_grad_() for x in heads(length, length)]
    at = list(range(length))
    got = ours(*inputs)
    want = torch.stack([formula(ours, inputs, at, at, row) for row in range(B)])
    same(got, want)
    loss = random(*want.shape, seed=9)
    parts = [*inputs, *ours.parameters()]
    options = {"allow_unused": True, "materialize_grads": True}
    grads = (torch.autograd.grad((x * loss).sum(), parts, **options) for x in (got, want))  # type: ignore[arg-type]
    for own, other in zip(*grads, strict=True):
        same(own, other)


@settings(max_examples=40)
@given(st.data())
def test_any_positions_lengths_and_factors(data: st.DataObject) -> None:
    by, pattern, local = data.draw(st.sampled_from(KINDS))
    ours = made(by, pattern, local, factor=data.draw(st.integers(1, 7)))
    q_at = data.draw(st.lists(st.integers(-1, 23), min_size=1, max_size=6))
    k_at = data.draw(st.lists(st.integers(0, 23), min_size=1, max_size=9, unique=True))
    k_at += [-1] * data.draw(st.integers(0, 2))
    k_at = data.draw(st.permutations(k_at))
    inputs = [x[:1] for x in heads(len(q_at), len(k_at))]
    got = ours(*inputs, q_tokens=Tokens.listed(q_at), k_tokens=Tokens.listed(k_at))
    same(got[0], formula(ours, inputs, q_at, k_at))


@every_kind
@pytest.mark.parametrize("side", ["left", "right"])
def test_pads_change_nothing_wherever_they_lie(
    by: str, pattern: Pattern, local: bool, side: str
) -> None:
    ours, (q, k, v) = made(by, pattern, local), heads()
    tokens = Tokens.padded([L, 6], side)
    real = tokens.positions[1] >= 0
    clean = ours(q, k, v, q_tokens=tokens, k_tokens=tokens)
    q[1][:, ~real], k[1][:, ~real], v[1][:, ~real] = 1e4, 1e4, -1e4
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out = ours(*inputs, q_tokens=tokens, k_tokens=tokens)
    assert torch.equal(out, clean)
    assert not out[1][:, ~real].any()
    same(out[:1], ours(*(x[:1] for x in inputs)))
    short = ours(*(x[1:, :, real] for x in inputs))
    same(out[1:, :, real], short)
    grads = torch.autograd.grad((out[1:, :, real] ** 2).sum(), inputs)
    for grad, own in zip(grads, torch.autograd.grad((short**2).sum(), inputs), strict=True):
        same(grad, own)
        assert not grad[1][:, ~real].any()


@pytest.mark.parametrize("by", ["conv", "mean", "max"])
@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_the_past_does_not_know_the_future(by: str, local: bool, padded: bool) -> None:
    ours, before = made(by, Causal(), local), heads()
    tokens = Tokens.padded([L, L - 2], "left") if padded else Tokens.arange(0, L)
    for last in range(L):
        after = [x.clone() for x in before]
        for x in after:
            x[:, :, last + 1 :] = 1e3 * x[:, :, last + 1 :].flip(-1) + 7
        first, second = (ours(*x, q_tokens=tokens, k_tokens=tokens) for x in (before, after))
        assert torch.equal(first[:, :, : last + 1], second[:, :, : last + 1])
    inputs = [x.requires_grad_() for x in before]
    out = ours(*inputs, q_tokens=tokens, k_tokens=tokens)[:, :, 5]
    for grad in torch.autograd.grad(out.sum(), inputs):
        assert not grad[:, :, 6:].any()


def test_local_blocks_of_factor_1_or_of_everything_are_exact_attention() -> None:
    q, k, v = heads()
    wide = [x.repeat_interleave(2, 1) for x in (k, v)]
    for pattern in (Full(), Causal()):
        causal = pattern == Causal()
        exact = torch.nn.functional.scaled_dot_product_attention(q, *wide, is_causal=causal)
        for factor in (1, L, 40):
            same(made("mean", pattern, True, factor=factor)(q, k, v), exact)
        same(made("max", pattern, factor=1)(q, k, v), exact)


def test_linear_in_values() -> None:
    q, k, v = heads()
    other = random(B, HK, L, E, seed=3)
    ours = made("mean", Causal(), True)
    same(ours(q, k, 2 * v + other), 2 * ours(q, k, v) + ours(q, k, other))
    assert not ours(q, k, 0 * v).any()
    same(ours(q, k, v * 0 + 3), torch.full_like(q, 3))
    biased = made("conv")  # its bias is a value of its own
    assert biased(q, k, 0 * v).any()


@every_kind
def test_nobody_at_all(by: str, pattern: Pattern, local: bool) -> None:
    ours, inputs = made(by, pattern, local), [x.requires_grad_() for x in heads()]
    out = ours(*inputs, q_tokens=Tokens.arange(0, L), k_tokens=Tokens.padded([0, L]))
    assert not out[0].any()
    for grad in torch.autograd.grad(out.square().sum(), [*inputs, *ours.parameters()]):
        assert grad.isfinite().all()
    full = ours.pattern == Full()
    assert not ours(*heads(3 if full else 0, 0)).any()
    assert ours(*heads(0, 5)).shape == (B, H, 0, E)


def test_more_queries_than_keys_and_cross_attention() -> None:
    ours, inputs = made("conv"), heads(L, 6)
    want = torch.stack(
        [formula(ours, inputs, list(range(L)), list(range(6)), row) for row in range(B)]
    )
    same(ours(*inputs), want)
    with pytest.raises(InvalidArgument, match="13 queries but 6 keys"):
        made("conv", Causal())(*inputs)
    last = heads(4, L)
    want = torch.stack(
        [formula(made("max", Causal()), last, list(range(9, L)), list(range(L)), row)
         for row in range(B)]
    )  # fmt: skip
    same(made("max", Causal())(*last), want)


@pytest.mark.parametrize("by", ["conv", "mean", "max"])
@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("step", [1, 2, 4, 5])
def test_decoding_from_a_cache_equals_the_whole(by: str, local: bool, step: int) -> None:
    mechanism = Compressed(4, by=by, num_kv_heads=2, head_dim=E, pattern=Causal(), local=local)  # type: ignore[arg-type]
    layer = MultiHeadAttention(4 * E, 4, num_kv_heads=2, head_dim=E, mechanism=mechanism).double()
    drawn(layer)
    layer.requires_grad_(False)
    x, tokens = random(B, 19, 4 * E), Tokens.padded([19, 15], "left")
    whole, cache = layer(x, q_tokens=tokens), layer.new_cache(B)
    for start in range(0, 19, step):
        now = Tokens(tokens.positions[:, start : start + step])
        cache.cache.advance(now)
        got = layer(x[:, start : start + step], q_tokens=now, cache=cache)
        real = now.positions >= 0
        same(got[real], whole[:, start : start + step][real])


def test_a_layer_with_rotary_and_autocast() -> None:
    mechanism = Compressed(3, num_kv_heads=2, head_dim=4, pattern=Causal(), local=True)
    layer = MultiHeadAttention(16, 4, num_kv_heads=2, position=Rotary(4), mechanism=mechanism)
    x = torch.randn(2, 11, 16, requires_grad=True)
    exact = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        half = layer(x)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), exact, rtol=0, atol=0.03)
    half.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@every_kind
def test_types(by: str, pattern: Pattern, local: bool, dtype: torch.dtype) -> None:
    ours, inputs = made(by, pattern, local), [x.to(dtype) for x in heads()]
    out = ours.to(dtype)(*inputs)
    assert out.dtype == dtype
    exact = ours.double()(*(x.double() for x in inputs))
    torch.testing.assert_close(out.double(), exact, rtol=0, atol=60 * torch.finfo(dtype).eps)


@pytest.mark.parametrize(("by", "pattern", "local"), KINDS[:1] + KINDS[7:8], ids=str)
def test_dropout_and_determinism(by: str, pattern: Pattern, local: bool) -> None:
    ours, inputs = made(by, pattern, local, dropout=0.3), heads()
    ours.eval()
    want = ours(*inputs)
    assert all(torch.equal(ours(*inputs), want) for _ in range(30))
    ours.train()
    torch.manual_seed(0)
    mean = torch.stack([ours(*inputs) for _ in range(100)]).mean(0)
    first = ours(*inputs)
    assert (mean - want).abs().mean() < 0.2 * (first - want).abs().mean() + 1e-12


@pytest.mark.parametrize(
    "pattern", [Window(2, 2), sliding_window(4), SameSegment(), Causal() & Window(3, 0)], ids=str
)
def test_other_patterns_are_refused_by_name(pattern: Pattern) -> None:
    with pytest.raises(NotSupported, match="cannot honour " + str(pattern).split("(")[0]):
        made("mean", pattern)


def test_refusals() -> None:
    ours, (q, k, v) = made("mean"), heads()
    packed = Tokens.packed([6, 7])
    with pytest.raises(NotSupported, match="documents"):
        ours(q, k, v, q_tokens=packed, k_tokens=packed)
    twice = Tokens.listed([0, 1, 1, *range(2, 12)])
    with pytest.raises(InvalidArgument, match="two tokens of a document stand at one position"):
        ours(q, k, v, q_tokens=twice, k_tokens=twice)
    with pytest.raises(InvalidArgument, match="made for num_kv_heads=3, head_dim=5"):
        made("conv")(q, q, q)
    with pytest.raises(InvalidArgument, match="conv, mean, max, centroids"):
        made("median")
    with pytest.raises(InvalidArgument, match="num_kv_heads"):
        Compressed(4)
    with pytest.raises(InvalidArgument, match="factor"):
        Compressed(0, by="mean")
    with pytest.raises(InvalidArgument, match="probability"):
        Compressed(2, by="mean", dropout=1.0)
    for options in ({"pattern": Causal()}, {"local": True}):
        with pytest.raises(NotSupported, match="centroids with"):
            Compressed(2, by="centroids", **options)  # type: ignore[arg-type]


def test_a_layer_that_is_not_causal_has_no_cache() -> None:
    layer = MultiHeadAttention(8, 2, mechanism=Compressed(4, by="mean"))
    with pytest.raises(NotSupported, match="later tokens change what earlier ones saw"):
        layer.new_cache()


def test_recipes() -> None:
    for text in ("compressed(factor=4, by=conv)", "compressed(factor=3, by=max, local=true)"):
        assert str(recipe(text)) == text
        module = recipe(text).make(Causal(), Heads(4, 2, 8), dropout=0.1)
        assert isinstance(module, Compressed) and module.dropout == 0.1
        assert module.causality == "functional" and module.no_cache is None
        assert module.local == ("local" in text)
    assert recipe("compressed(factor=2)").make(Full(), Heads(4, 2, 8)).causality == "none"
