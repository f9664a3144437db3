"""Keys and tokens that do not belong to the sequence, against one dense softmax over all keys."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from eyeline import (
    Causal,
    Chunks,
    Full,
    Pattern,
    PerHead,
    Tokens,
    Window,
    dense_mask,
    prefix_lm,
    streaming,
)  # fmt: skip
from eyeline.encodings import Learned, Rotary
from eyeline.errors import NotSupported
from eyeline.layers import BlockShape, MultiHeadAttention
from eyeline.mechanisms import Exact, ExtraKeys, ExtraTokens
from eyeline.scores import ALiBi, Shaw
from layers.dense import copy_attention, drawn, random

B, H, HK, L, E, EXTRA = 2, 4, 2, 13, 6, 3


def close(ours: Tensor, theirs: Tensor, atol: float = 1e-11) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


def heads() -> tuple[Tensor, Tensor, Tensor]:
    return random(B, H, L, E), random(B, HK, L, E, seed=1), random(B, HK, L, E, seed=2)


def softmax(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, bias: Tensor | float = 0.0) -> Tensor:
    k, v = (x.repeat_interleave(H // x.shape[1], 1) for x in (k, v))
    score = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) + bias
    return score.masked_fill(~mask, -math.inf).softmax(-1).nan_to_num() @ v


def extra_keys(exact: Exact) -> ExtraKeys:
    made = ExtraKeys(exact, EXTRA, num_kv_heads=HK, head_dim=E).double()
    drawn(made)
    return made


@pytest.mark.parametrize("pattern", [Causal(), streaming(4, 1), Window(2, 2), Full()], ids=str)
def test_extra_keys_are_keys_for_everyone(pattern: Pattern) -> None:
    ours, (q, k, v) = extra_keys(Exact(pattern)), heads()
    mask = torch.cat((dense_mask(pattern, L), torch.ones(L, EXTRA).bool()), 1)
    together = [
        torch.cat((x, m.expand(B, -1, -1, -1)), 2) for x, m in ((k, ours.key), (v, ours.value))
    ]
    close(ours(q, k, v), softmax(q, *together, mask))
    weight = ours.weights(q, k)
    assert weight.shape == (B, H, L, L + EXTRA)
    close(weight @ together[1].repeat_interleave(H // HK, 1), ours(q, k, v))
    drawn_keys = [
        p.square().sum() for p in torch.autograd.grad(ours(q, k, v).sum(), (ours.key, ours.value))
    ]
    assert min(drawn_keys) > 0


def test_extra_keys_where_nobody_else_is_seen() -> None:
    ours, (q, k, v) = extra_keys(Exact(Causal() & ~Window(0, 0))), heads()
    tokens = Tokens.padded([L, L - 4])
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out = ours(*inputs, q_tokens=tokens, k_tokens=tokens)
    alone = q[0, :, :1] @ ours.key.repeat_interleave(2, 0).transpose(-2, -1) / math.sqrt(E)
    close(out[0, :, :1], alone.softmax(-1) @ ours.value.repeat_interleave(2, 0))
    assert not out[1, :, :4].any()  # nobody
    for grad in torch.autograd.grad(out.square().sum(), (*inputs, ours.key, ours.value)):
        assert grad.isfinite().all()


def test_score_modifiers_stop_at_the_sequence() -> None:
    ours, (q, k, v) = extra_keys(Exact(Causal(), score_mod=ALiBi(H), scale=0.3)), heads()
    distance = (torch.arange(L)[None] - torch.arange(L)[:, None]).abs()
    slopes = torch.tensor([2.0 ** (-2 * (h + 1)) for h in range(H)], dtype=torch.float64)
    bias = torch.cat((-slopes[:, None, None] * distance, torch.zeros(H, L, EXTRA)), -1)
    mask = torch.cat((dense_mask(Causal(), L), torch.ones(L, EXTRA).bool()), 1)
    together = [
        torch.cat((x, m.expand(B, -1, -1, -1)), 2) for x, m in ((k, ours.key), (v, ours.value))
    ]
    close(ours(q, k, v), softmax(q * 0.3 * math.sqrt(E), *together, mask, bias))
    wide = together[1].repeat_interleave(H // HK, 1)
    close(ours.weights(q, k) @ wide, ours(q, k, v))


def test_torch_bias_kv_is_one_extra_key() -> None:
    theirs = nn.MultiheadAttention(24, H, batch_first=True, add_bias_kv=True).double()
    drawn(theirs)
    extra = ExtraKeys(Exact(Causal()), 1, num_kv_heads=H, head_dim=E)
    ours = MultiHeadAttention(24, H, mechanism=extra).double()
    copy_attention(theirs, ours)
    with torch.no_grad():
        extra.key.copy_(theirs.bias_k.view(H, 1, E))  # type: ignore[union-attr]
        extra.value.copy_(theirs.bias_v.view(H, 1, E))  # type: ignore[union-attr]
    x, hidden = random(B, L, 24), ~dense_mask(Causal(), L)
    want, weights = theirs(x, x, x, attn_mask=hidden, average_attn_weights=False)
    close(ours(x), want)
    close(ours.weights(x), weights)


def test_dropout_of_extra_keys() -> None:
    ours, (q, k, v) = extra_keys(Exact(Causal(), dropout=0.4)), heads()
    want = ours.eval()(q, k, v)
    ours.train()
    torch.manual_seed(0)
    first = ours(q, k, v)
    torch.manual_seed(0)
    close(ours(q, k, v), first)
    mean = torch.stack([ours(q, k, v) for _ in range(400)]).mean(0)
    assert (mean - want).abs().mean() < 0.1 * (first - want).abs().mean()
    # Weights of both kinds of keys are left out, each where the other's values are 0.
    with torch.no_grad():
        assert (ours(q, k, 0 * v) - ours(q, k, 0 * v)).abs().max() > 1e-3
        ours.value.zero_()
        assert (ours(q, k, v) - ours(q, k, v)).abs().max() > 1e-3


# --- Tokens both ways ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pattern", [Window(2, 2), Full(), PerHead([Causal()] * 3 + [Full()])], ids=str
)
def test_extra_tokens_look_at_all_and_all_look_at_them(pattern: Pattern) -> None:
    ours, (q, k, v) = (
        ExtraTokens(Exact(pattern, score_mod=Shaw(E, 2, value_dim=0).double()), EXTRA),
        heads(),
    )
    drawn(ours)
    tokens = ours.beside(L - EXTRA)
    assert tokens.positions.tolist() == [-1] * EXTRA + list(range(L - EXTRA))
    mask = torch.ones(H, L, L).bool()
    inner = L - EXTRA
    mask[:, EXTRA:, EXTRA:] = (
        dense_mask(pattern, inner, heads=H, batch=1)[0]
        if "per" in str(pattern)
        else dense_mask(pattern, inner)
    )
    distance = (torch.arange(inner)[None] - torch.arange(inner)[:, None]).clamp(-2, 2) + 2
    rel = ours.exact.score_mods[0].key[distance]  # type: ignore[union-attr, index]
    bias = torch.zeros(B, H, L, L, dtype=torch.float64)
    bias[:, :, EXTRA:, EXTRA:] = torch.einsum("bhie,ije->bhij", q[:, :, EXTRA:], rel) / math.sqrt(E)
    got = ours(q, k, v, q_tokens=tokens, k_tokens=tokens)
    close(got, softmax(q, k, v, mask, bias))


def test_padding_beside_extra_tokens() -> None:
    ours, (q, k, v) = ExtraTokens(Exact(Window(2, 2)), EXTRA), heads()
    tokens = ours.beside(Tokens.padded([L - EXTRA, 4]))
    got = ours(q, k, v, q_tokens=tokens, k_tokens=tokens)
    hidden = torch.arange(EXTRA, L - 4)
    k, v = k.clone(), v.clone()
    k[1][:, hidden], v[1][:, hidden] = 1e4, -1e4
    assert torch.equal(ours(q, k, v, q_tokens=tokens, k_tokens=tokens), got)
    assert not got[1, :, hidden].any()
    short = [torch.cat((x[1:, :, :EXTRA], x[1:, :, L - 4 :]), 2) for x in (q, k, v)]
    both = ours.beside(4)
    alone = ours(*short, q_tokens=both, k_tokens=both)
    close(got[1:, :, :EXTRA], alone[:, :, :EXTRA])
    close(got[1:, :, L - 4 :], alone[:, :, EXTRA:])


@pytest.mark.parametrize("pattern", [
    Causal(), streaming(4, 1), PerHead([Causal(), streaming(2, 1)]),
    torch.ones(10, 10).tril().bool(), lambda b, h, q, k: q >= k,
    prefix_lm(4), Causal() | Chunks(5),
], ids=["causal", "streaming", "heads", "tensor", "callable", "prefix", "chunks"])  # fmt: skip
def test_extra_tokens_would_tell_of_the_future(pattern: Pattern) -> None:
    ours = ExtraTokens(Exact(pattern), EXTRA)
    q = random(B, 2, L, E)
    tokens = ours.beside(L - EXTRA)
    with pytest.raises(NotSupported, match="looks at none that come later"):
        ours(q, q, q, q_tokens=tokens, k_tokens=tokens)
    with pytest.raises(NotSupported, match="looks at none that come later"):
        several = ours.beside(Tokens.padded([1, L - EXTRA]))
        ours(q, q, q, q_tokens=several, k_tokens=several)
    one = ours.beside(Tokens.padded([1, 0], length=L - EXTRA))  # there is no future
    assert ours(q, q, q, q_tokens=one, k_tokens=one).isfinite().all()


def test_where_every_token_hears_of_later_ones_nothing_is_told() -> None:
    """One of several heads that looks ahead is enough; the last token has nothing to look at."""
    next_one = torch.ones(10, 10).tril(1).bool()
    for pattern in (next_one, PerHead([Causal(), Window(0, 1)]), Window(3, 1)):
        ours = ExtraTokens(Exact(pattern), 2)
        q, tokens = random(1, 2, 12, 2), ours.beside(10)
        assert ours(q, q, q, q_tokens=tokens, k_tokens=tokens).isfinite().all()


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_stack_of_extra_tokens(checkpoint: bool) -> None:
    """The same as blocks over the longer sequence under a mask; positions do not shift."""
    shape = BlockShape(24, 4, 31, kv_heads=2)
    options = {"position": [Rotary(E), Learned(L, 24)], "position_at": "each"}
    stack = shape.stack(
        2, Window(2, 2), extra_tokens=EXTRA, checkpoint=checkpoint, **options
    ).double()  # type: ignore[arg-type]
    drawn(stack)
    x = random(B, L, 24)
    got = stack(x)
    assert got.shape == x.shape
    mask = torch.ones(L + EXTRA, L + EXTRA).bool()
    mask[EXTRA:, EXTRA:] = dense_mask(Window(2, 2), L)
    table = stack.blocks[0].attention.added.weight  # type: ignore[union-attr]
    y = torch.cat((stack.extra_tokens.expand(B, -1, -1), x), 1)
    positions = torch.cat((torch.zeros(EXTRA), torch.arange(L))).long()
    places = torch.cat((torch.zeros(EXTRA, 24).double(), table))
    turning = Rotary(E).tables(positions, dtype=torch.float64)
    for block in stack.blocks:
        own = block.attention
        normed = block.attention_norm(y)
        q, k = (
            Rotary(E).rotate(own._split(f(normed + places)), turning)
            for f in (own.q_proj, own.k_proj)
        )
        seen = softmax(q, k, own._split(own.v_proj(normed)), mask)
        y = y + own.out_proj(seen.transpose(1, 2).flatten(2))
        y = y + block.feed_forward(block.feed_forward_norm(y))
    close(got, stack.final_norm(y[:, EXTRA:]))
    got.square().sum().backward()
    assert stack.extra_tokens.grad is not None and stack.extra_tokens.grad.all()


def test_a_graph_has_no_numbers_of_extra_tokens() -> None:
    """Refused by name where the graph must be whole; else these layers run as they are."""
    stack = BlockShape(24, 4, 31).stack(2, Window(2, 2), extra_tokens=EXTRA)
    whole, broken = (torch.compile(stack, backend="eager", fullgraph=x) for x in (True, False))
    words = "extra tokens look up where the others stand"
    torch._dynamo.reset()
    with pytest.raises(Exception, match=words):
        whole(torch.zeros(B, L, 24))
    with pytest.raises(NotSupported, match=words):
        torch.export.export(stack, (torch.zeros(B, L, 24),), strict=False)
    torch._dynamo.reset()
    for length in (L, L + 4):
        x = torch.randn(B, length, 24)
        torch.testing.assert_close(broken(x), stack(x))
