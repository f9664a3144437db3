"""Blocks against nn.TransformerEncoderLayer and nn.TransformerDecoderLayer with copied weights."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from eyeline import Causal, Pattern, Tokens, Window, dense_mask, streaming
from eyeline.layers import Block, DecoderBlock, FeedForward, MultiHeadAttention, RMSNorm
from layers.dense import copy_attention, copy_feed_forward, drawn, random

D, H, HIDDEN, L, S = 21, 3, 31, 13, 17


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


def torch_options(norm: str, activation: str, bias: bool) -> dict[str, object]:
    return {
        "d_model": D, "nhead": H, "dim_feedforward": HIDDEN, "dropout": 0.0, "bias": bias,
        "activation": activation, "norm_first": norm == "pre", "batch_first": True,
        "layer_norm_eps": 1e-3,
    }  # fmt: skip


def parts(norm: str, activation: str, bias: bool) -> dict[str, object]:
    make_norm = partial(nn.LayerNorm, eps=1e-3, bias=bias)
    return {
        "feed_forward": FeedForward(D, HIDDEN, activation=activation, bias=bias),  # type: ignore[arg-type]
        "norm": norm,
        "make_norm": make_norm,
    }


def copy_norms(theirs: nn.Module, ours: nn.Module, *names: str) -> None:
    for number, name in enumerate(names, 1):
        state = theirs.get_submodule(f"norm{number}").state_dict()
        ours.get_submodule(f"{name}_norm").load_state_dict(state)


def encoder_pair(
    norm: str, activation: str, bias: bool, pattern: Pattern
) -> tuple[nn.TransformerEncoderLayer, Block]:
    theirs = nn.TransformerEncoderLayer(**torch_options(norm, activation, bias)).double()  # type: ignore[arg-type]
    drawn(theirs)
    attention = MultiHeadAttention(D, H, pattern=pattern, bias=bias)
    ours = Block(attention, **parts(norm, activation, bias)).double()  # type: ignore[arg-type]
    copy_attention(theirs.self_attn, ours.attention)
    copy_feed_forward(theirs, ours.feed_forward)  # type: ignore[arg-type]
    copy_norms(theirs, ours, "attention", "feed_forward")
    return theirs, ours


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_encoder_layer(norm: str, activation: str, bias: bool) -> None:
    pattern = Window(left=3, right=2)
    theirs, ours = encoder_pair(norm, activation, bias, pattern)
    x = random(2, L, D).requires_grad_()
    hidden = ~dense_mask(pattern, L)
    got, want = ours(x), theirs(x, src_mask=hidden)
    close(got, want)
    close(*(torch.autograd.grad(y.square().sum(), x)[0] for y in (got, want)))


def test_torch_key_padding() -> None:
    theirs, ours = encoder_pair("pre", "gelu", True, Causal())
    x, lengths = random(3, L, D), [13, 7, 2]
    ignored = torch.arange(L) >= torch.tensor(lengths)[:, None]
    tokens = Tokens.padded(lengths, side="right")
    hidden = torch.zeros(L, L).masked_fill(~dense_mask(Causal(), L), -torch.inf).double()
    float_ignored = torch.zeros(3, L).masked_fill(ignored, -torch.inf).double()
    want = theirs(x, src_mask=hidden, src_key_padding_mask=float_ignored)
    close(ours(x, q_tokens=Tokens.arange(0, L), k_tokens=tokens), want)
    close(ours(x, q_tokens=tokens)[~ignored], want[~ignored])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_decoder_layer(norm: str, bias: bool) -> None:
    theirs = nn.TransformerDecoderLayer(**torch_options(norm, "relu", bias)).double()  # type: ignore[arg-type]
    drawn(theirs)
    own, cross = Causal(), streaming(size=9, sinks=3)
    ours = DecoderBlock(
        MultiHeadAttention(D, H, pattern=own, bias=bias),
        MultiHeadAttention(D, H, pattern=cross, bias=bias),
        **parts(norm, "relu", bias),  # type: ignore[arg-type]
    ).double()
    copy_attention(theirs.self_attn, ours.self_attention)
    copy_attention(theirs.multihead_attn, ours.cross_attention)
    copy_feed_forward(theirs, ours.feed_forward)  # type: ignore[arg-type]
    copy_norms(theirs, ours, "self_attention", "cross_attention", "feed_forward")
    x, memory = random(2, L, D).requires_grad_(), random(2, S, D, seed=1).requires_grad_()
    # Positions count from 0 on both sides, as cross attention has it.
    tokens = Tokens.arange(0, L), Tokens.arange(0, S)
    seen = dense_mask(cross, q_tokens=tokens[0], k_tokens=tokens[1])
    want = theirs(x, memory, tgt_mask=~dense_mask(own, L), memory_mask=~seen)
    got = ours(x, memory)
    close(got, want)
    close(ours(x, ours.cross_attention.project(memory)), want)
    for a, b in zip(
        *(torch.autograd.grad(y.square().sum(), (x, memory)) for y in (got, want)), strict=True
    ):
        close(a, b)


def test_padded_memory_leaves_the_queries_where_they_are() -> None:
    ours = DecoderBlock(
        MultiHeadAttention(D, H, pattern=Causal()), MultiHeadAttention(D, H), FeedForward(D, HIDDEN)
    ).double()
    drawn(ours)
    x, memory = random(2, L, D), random(2, S, D, seed=1)
    tokens = Tokens.padded([S, 5], side="right")
    got = ours(x, memory, memory_tokens=tokens)
    close(got[:1], ours(x[:1], memory[:1]))
    close(got[1:], ours(x[1:], memory[1:, :5]))


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_what_stands_in_pads_reaches_no_token(norm: str, side: str) -> None:
    ours = Block(
        MultiHeadAttention(D, H, pattern=Window(left=4, right=3)),
        FeedForward(D, HIDDEN),
        norm=norm,  # type: ignore[arg-type]
        make_norm=RMSNorm,
    ).double()
    drawn(ours)
    tokens = Tokens.padded([L, 6, 1], side=side)
    real = tokens.positions >= 0
    clean, full = random(3, L, D), random(3, L, D)
    full[~real] = 1e4 * random(int((~real).sum()), D, seed=3)
    results = []
    for x in (clean, full):
        x.requires_grad_()
        ours.zero_grad()
        out = ours(x, q_tokens=tokens)
        out[real].square().sum().backward()
        assert x.grad is not None and not x.grad[~real].any()
        results.append([out[real], x.grad[real], *(p.grad.clone() for p in ours.parameters())])
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("where", ["weights", "feed-forward", "residual"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_dropout_only_in_training_and_seeded(norm: str, where: str) -> None:
    p = {name: 0.3 if name == where else 0.0 for name in ("weights", "feed-forward", "residual")}
    ours = Block(
        MultiHeadAttention(D, H, dropout=p["weights"]),
        FeedForward(D, HIDDEN, dropout=p["feed-forward"]),
        norm=norm,  # type: ignore[arg-type]
        dropout=p["residual"],
    )
    x = torch.randn(2, L, D)
    assert torch.equal(ours.eval()(x), ours(x))
    ours.train()
    torch.manual_seed(0)
    first = ours(x)
    assert not torch.equal(first, ours(x))
    torch.manual_seed(0)
    assert torch.equal(first, ours(x))


def test_dropped_residuals_leave_the_input_as_it_is() -> None:
    ours = Block(MultiHeadAttention(D, H), FeedForward(D, HIDDEN), norm="pre", dropout=0.7)
    drawn(ours)
    x = torch.randn(7, 101, D)
    share = float((ours(x) == x).float().mean())
    assert share == pytest.approx(0.7**2, abs=0.03)
