"""Additive attention against its formula, pair by pair."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eyeline import Causal, Pattern, Tokens, Window, dense_mask
from eyeline.errors import InvalidArgument
from eyeline.functional import additive_attention, additive_attention_weights
from eyeline.layers import MultiHeadAttention
from eyeline.mechanisms import Additive, additive
from layers.dense import drawn, heads_of, random
from strategies import patterns

B, H, L, S, EQ, EK, EV, HIDDEN = 2, 3, 7, 11, 5, 3, 2, 13


def inputs(per_head: bool = False) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    heads = (H,) if per_head else ()
    tensors = random(B, H, L, EQ), random(B, H, S, EK, seed=1), random(B, H, S, EV, seed=2)
    weights = {
        "w_q": random(*heads, HIDDEN, EQ, seed=3),
        "w_k": random(*heads, HIDDEN, EK, seed=4),
        "w_v": random(*heads, HIDDEN, seed=5),
    }
    return tensors, weights


def by_pairs(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, w: dict[str, Tensor]) -> Tensor:
    """One pair after the other, for the head h of row b."""
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=q.dtype)
    for b, h, i in torch.cartesian_prod(*(torch.arange(n) for n in q.shape[:3])):
        w_q, w_k, w_v = (x if w["w_v"].dim() == 1 else x[h] for x in w.values())
        seen = [j for j in range(k.shape[2]) if mask[i, j]]
        scores = [w_v @ (w_q @ q[b, h, i] + w_k @ k[b, h, j]).tanh() for j in seen]
        shares = torch.stack(scores).softmax(0) if seen else []
        for j, share in zip(seen, shares, strict=True):
            out[b, h, i] += share * v[b, h, j]
    return out


@pytest.mark.parametrize("per_head", [False, True])
def test_formula(per_head: bool) -> None:
    (q, k, v), weights = inputs(per_head)
    mask = random(L, S, seed=6) > 0.3
    mask[2] = False
    got = additive_attention(q, k, v, mask, **weights)
    torch.testing.assert_close(got, by_pairs(q, k, v, mask, weights), rtol=0, atol=1e-12)
    assert not got[:, :, 2].any()
    share = additive_attention_weights(q, k, mask, **weights)
    torch.testing.assert_close(share @ v, got, rtol=0, atol=1e-12)
    torch.testing.assert_close(share.sum(-1)[0, 0], mask.any(-1).double())


@settings(max_examples=30)
@given(pattern=patterns, length=st.integers(1, 40), budget=st.integers(1, 40_000))
def test_any_pattern_a_few_queries_at_a_time(pattern: Pattern, length: int, budget: int) -> None:
    q, k, v = (random(1, 2, length, 3, seed=seed).requires_grad_() for seed in range(3))
    weights = {name: random(*s) for name, s in {"w_q": (5, 3), "w_k": (5, 3), "w_v": (5,)}.items()}
    tokens = Tokens.padded([length - length // 4], length=length)
    results = []
    for limit in (1 << 40, budget):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("eyeline.budgets.budgets.hidden", limit)
            out = additive_attention(q, k, v, pattern, **weights, q_tokens=tokens, k_tokens=tokens)
            results.append((out, *torch.autograd.grad(out.square().sum(), (q, k, v))))
    for whole, pieces in zip(*results, strict=True):
        torch.testing.assert_close(pieces, whole, rtol=0, atol=1e-11)


def test_dropout_of_pieces_is_seeded_and_right_in_expectation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (q, k, v), weights = inputs()
    want = additive_attention(q, k, v, **weights)
    monkeypatch.setattr("eyeline.budgets.budgets.hidden", 10_000)
    w_q, grads = weights["w_q"].requires_grad_(), []
    for again in (additive.checkpoint, lambda rows, *given, use_reentrant: rows(*given)):
        monkeypatch.setattr(additive, "checkpoint", again)
        torch.manual_seed(3)
        out = additive_attention(q, k, v, **weights, dropout_p=0.4)
        grads.append(torch.autograd.grad(out.sum(), w_q)[0])
    assert torch.equal(*grads)  # the weights dropped in the backward pass are the same ones
    assert (out - want).abs().max() > 1e-2
    with torch.no_grad():
        mean = torch.stack(
            [additive_attention(q, k, v, **weights, dropout_p=0.4) for _ in range(500)]
        ).mean(0)
    assert (mean - want).abs().mean() < 0.1 * (out - want).abs().mean()


def test_hidden_units_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    (q, k, v), weights = inputs()
    kept: list[list[Tensor]] = []

    def pack(x: Tensor) -> Tensor:
        kept[-1].append(x)
        return x

    for budget in (1 << 30, 1):
        monkeypatch.setattr("eyeline.budgets.budgets.hidden", budget)
        kept.append([])
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            additive_attention(q.requires_grad_(), k, v, **weights)
    storages = [
        {x.untyped_storage().data_ptr(): x.untyped_storage() for x in each} for each in kept
    ]
    whole, pieces = (sum(s.nbytes() for s in each.values()) // 8 for each in storages)
    assert whole >= B * H * L * S * HIDDEN and pieces < B * H * (L + S) * HIDDEN * 2


def test_derivatives() -> None:
    (q, k, v), weights = inputs(per_head=True)
    mask = random(L, S, seed=6) > 0.3
    mask[2] = False
    given_ = [x.requires_grad_() for x in (q, k, v, *weights.values())]

    def call(q: Tensor, k: Tensor, v: Tensor, *w: Tensor) -> Tensor:
        return additive_attention(q, k, v, mask, **dict(zip(weights, w, strict=True)))

    assert torch.autograd.gradcheck(call, given_, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, given_, fast_mode=True)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_in_a_layer_each_head_has_its_own_network(kv_heads: int) -> None:
    pattern = Causal() & Window(left=4, right=0)
    mechanism = Additive(4, 3, hidden=5, pattern=pattern)
    layer = MultiHeadAttention(12, 4, num_kv_heads=kv_heads, mechanism=mechanism).double()
    drawn(layer)
    x = random(2, 7, 12)
    q, k, v = (heads_of(x, f, 3) for f in (layer.q_proj, layer.k_proj, layer.v_proj))
    k, v = (y.repeat_interleave(4 // kv_heads, 1) for y in (k, v))
    named = {"w_q": mechanism.w_q, "w_k": mechanism.w_k, "w_v": mechanism.w_v}
    seen = by_pairs(q, k, v, dense_mask(pattern, 7), named)
    want = layer.out_proj(seen.transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(x), want, rtol=0, atol=1e-12)
    torch.testing.assert_close(layer.weights(x).sum(-1), torch.ones(2, 4, 7).double())
    layer(x).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


def test_low_precision_and_autocast() -> None:
    (q, k, v), weights = inputs()
    want = additive_attention(q, k, v, **weights)
    half = additive_attention(
        *(x.bfloat16() for x in (q, k, v)), **{n: w.bfloat16() for n, w in weights.items()}
    )
    assert half.dtype == torch.bfloat16 and (half.double() - want).abs().max() < 0.05
    with torch.autocast("cpu", torch.bfloat16):
        cast = additive_attention(
            *(x.float() for x in (q, k, v)), **{n: w.float() for n, w in weights.items()}
        )
    assert cast.dtype == torch.bfloat16 and (cast.double() - want).abs().max() < 0.05


def test_what_does_not_fit_is_refused() -> None:
    (q, k, v), weights = inputs()
    for name, wrong in (("w_q", (HIDDEN, EK)), ("w_k", (HIDDEN + 1, EK)), ("w_v", (H + 1, HIDDEN))):
        with pytest.raises(InvalidArgument, match=rf"{name} \({wrong[0]}, {wrong[1]}\)"):
            additive_attention(q, k, v, **{**weights, name: random(*wrong)})
    with pytest.raises(InvalidArgument, match=r"heads differs|share"):
        additive_attention(q, k[:, :2], v[:, :2], **weights)
    with pytest.raises(InvalidArgument, match="length"):
        additive_attention(q, k, v[:, :, :3], **weights)
    with pytest.raises(InvalidArgument, match=r"query \(3, 7, 5\) must be"):
        additive_attention(q[0], k, v, **weights)
    with pytest.raises(InvalidArgument, match="dropout_p=1"):
        additive_attention(q, k, v, **weights, dropout_p=1.0)
