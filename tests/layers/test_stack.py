"""Stacks: against torch's, with positions in three places, checkpointing and padding."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from eyeline import Causal, Pattern, Tokens, Window, sliding_window, streaming
from eyeline.encodings import Learned, Rotary, Sinusoidal
from eyeline.layers import BlockShape, MultiHeadAttention, RMSNorm, Stack
from eyeline.mechanisms import Additive, Exact, ExtraKeys
from eyeline.scores import OffsetBias, Shaw, T5Bias
from layers.dense import copy_attention, copy_feed_forward, drawn, random

D, L = 20, 13
SHAPE = BlockShape(width=D, heads=4, hidden=23, kv_heads=2)


def close(ours: Tensor, theirs: Tensor, atol: float = 1e-11) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


def test_torch_encoder() -> None:
    one = nn.TransformerEncoderLayer(D, 4, 23, dropout=0.0, norm_first=True, batch_first=True)
    theirs = nn.TransformerEncoder(one, 3, norm=nn.LayerNorm(D), enable_nested_tensor=False)
    drawn(theirs.double())
    ours = BlockShape(D, 4, 23, feed="relu").stack(3, Causal()).double()
    for a, b in zip(theirs.layers, ours.blocks, strict=True):
        copy_attention(a.self_attn, b.attention)  # type: ignore[arg-type]
        copy_feed_forward(a, b.feed_forward)  # type: ignore[arg-type]
        b.attention_norm.load_state_dict(a.norm1.state_dict())
        b.feed_forward_norm.load_state_dict(a.norm2.state_dict())
    ours.final_norm.load_state_dict(theirs.norm.state_dict())  # type: ignore[union-attr]
    x = random(2, L, D)
    close(ours(x), theirs(x, mask=torch.ones(L, L).triu(1).bool()))


def test_torch_decoder() -> None:
    one = nn.TransformerDecoderLayer(D, 4, 23, dropout=0.0, batch_first=True)
    theirs = nn.TransformerDecoder(one, 2)
    drawn(theirs.double())
    ours = BlockShape(D, 4, 23, norm="post", feed="relu").decoder(2).double()
    for a, b in zip(theirs.layers, ours.blocks, strict=True):
        copy_attention(a.self_attn, b.self_attention)  # type: ignore[arg-type]
        copy_attention(a.multihead_attn, b.cross_attention)  # type: ignore[arg-type]
        copy_feed_forward(a, b.feed_forward)  # type: ignore[arg-type]
        for number, name in enumerate(("self_attention", "cross_attention", "feed_forward"), 1):
            b.get_submodule(f"{name}_norm").load_state_dict(
                a.get_submodule(f"norm{number}").state_dict()
            )
    x, memory = random(2, L, D), random(2, 7, D, seed=1)
    close(ours(x, memory), theirs(x, memory, tgt_mask=torch.ones(L, L).triu(1).bool()))
    assert ours.final_norm is None


def test_each_layer_has_its_own_pattern_and_no_weights_in_common() -> None:
    patterns: list[Pattern] = [Causal(), sliding_window(3), streaming(4, 1)]
    stack = SHAPE.stack(3, patterns)
    assert [block.attention.pattern for block in stack.blocks] == patterns
    assert {block.attention.num_kv_heads for block in stack.blocks} == {2}
    one = sum(p.numel() for p in SHAPE.block().parameters())
    assert sum(p.numel() for p in stack.parameters()) == 3 * one + 2 * D


def by_hand(stack: Stack, x: Tensor, added: dict[int, Tensor]) -> Tensor:
    """Pre-norm blocks, one after the other; added[i] is added to queries and keys of layer i."""
    for i, block in enumerate(stack.blocks):
        attention = copy.deepcopy(block.attention)
        attention.added = None
        normed = block.attention_norm(x)
        placed = normed + added.get(i, torch.zeros(L, D))
        x = x + attention(placed, placed, normed)
        x = x + block.feed_forward(block.feed_forward_norm(x))
    return stack.final_norm(x)  # type: ignore[no-any-return, misc]


@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
@pytest.mark.parametrize("at", ["input", "first", "each"])
def test_three_places_for_an_encoding(at: str, kind: str) -> None:
    encoding = Sinusoidal(D) if kind == "sinusoidal" else Learned(L, D)
    stack = SHAPE.stack(3, Causal(), position=encoding, position_at=at).double()  # type: ignore[arg-type]
    drawn(stack)
    x, table = random(2, L, D), encoding.table(torch.arange(L), dtype=torch.float64)
    places = {"input": {}, "first": {0: table}, "each": dict.fromkeys(range(3), table)}
    close(stack(x), by_hand(stack, x + table if at == "input" else x, places[at]))
    if isinstance(encoding, Learned):
        names = [name for name, p in stack.named_parameters() if p is encoding.weight]
        assert len(names) == 1
        stack(x).square().sum().backward()
        assert encoding.weight.grad is not None and encoding.weight.grad.any()


def test_modifiers_are_shared_unless_blocks_are_made_one_by_one() -> None:
    shared = T5Bias(4, bidirectional=False)
    stack = SHAPE.stack(3, Causal(), position=shared)
    assert all(block.attention.mechanism.score_mods == (shared,) for block in stack.blocks)
    own = [SHAPE.block(Causal(), position=Shaw(5, 3)) for _ in range(3)]
    tables = [block.attention.mechanism.score_mods[0].key for block in own]
    assert len({id(table) for table in tables}) == 3
    assert Stack(own, final_norm=RMSNorm(D))(torch.randn(1, L, D)).shape == (1, L, D)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_checkpointing_gives_the_same_gradients(dropout: float) -> None:
    shape = BlockShape(D, 4, 23, kv_heads=2, dropout=dropout)
    options = {"position": [OffsetBias(4, 3), Learned(L, D)], "position_at": "each"}
    plain = shape.stack(3, streaming(4, 2), **options).double()  # type: ignore[arg-type]
    drawn(plain)
    saving = shape.stack(3, streaming(4, 2), checkpoint=True, **options).double()  # type: ignore[arg-type]
    saving.load_state_dict(plain.state_dict())
    x, tokens, found = random(2, L, D), Tokens.padded([L, 7]), []
    for stack in (plain, saving):
        torch.manual_seed(5)
        out = stack(x.requires_grad_(), q_tokens=tokens)
        found.append([out, *torch.autograd.grad(out.square().sum(), (x, *stack.parameters()))])
    for a, b in zip(*found, strict=True):
        close(a, b, 0.0)
    if dropout:
        assert not torch.equal(plain(x, q_tokens=tokens), found[0][0])


def test_checkpointing_keeps_less() -> None:
    kept: list[int] = []
    for checkpoint in (False, True):
        total = 0

        def pack(x: Tensor) -> Tensor:
            nonlocal total
            total += x.numel()
            return x

        stack = SHAPE.stack(4, Causal(), checkpoint=checkpoint)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            stack(torch.randn(2, 101, D))
        kept.append(total)
    assert kept[1] < kept[0] / 5


def test_decoder_checkpointing() -> None:
    shape = BlockShape(D, 4, 23, dropout=0.2)
    x, memory = random(2, L, D), random(2, 7, D, seed=1).requires_grad_()
    plain, saving = (shape.decoder(2, checkpoint=on).double() for on in (False, True))
    drawn(plain)
    saving.load_state_dict(plain.state_dict())
    found = []
    for stack in (plain, saving):
        torch.manual_seed(5)
        out = stack(x, memory)
        found.append([out, *torch.autograd.grad(out.square().sum(), (memory, *stack.parameters()))])
    for a, b in zip(*found, strict=True):
        close(a, b, 0.0)


def test_padding_from_end_to_end() -> None:
    stack = SHAPE.stack(3, Window(left=3, right=2), position=Learned(L, D), position_at="input")
    drawn(stack.double())
    for side in ("left", "right"):
        tokens = Tokens.padded([L, 6], side=side)
        real = tokens.positions >= 0
        x = random(2, L, D)
        got = stack(x, q_tokens=tokens)
        x[~real] = 1e4
        assert torch.equal(stack(x, q_tokens=tokens)[real], got[real])
        close(got[1][real[1]], stack(x[1:][real[1:]][None])[0])


def test_a_past_output_does_not_depend_on_the_future() -> None:
    shape = BlockShape(D, 4, 23, kv_heads=1, dropout=0.3)
    stack = shape.stack(3, [Causal(), streaming(4, 2), sliding_window(3)], position=Sinusoidal(D))
    drawn(stack)
    x = torch.randn(2, L, D)
    for training in (False, True):
        stack.train(training)
        for i in range(L - 1):
            changed = x.clone()
            changed[:, i + 1 :] = 1e3
            torch.manual_seed(0)
            before = stack(x)[:, : i + 1]
            torch.manual_seed(0)
            assert torch.equal(stack(changed)[:, : i + 1], before)


def test_copies_states_and_autocast() -> None:
    stack = SHAPE.stack(2, Causal(), position=[T5Bias(4, bidirectional=False), Learned(L, D)])
    x = torch.randn(2, L, D)
    other = SHAPE.stack(2, Causal(), position=[T5Bias(4, bidirectional=False), Learned(L, D)])
    other.load_state_dict(stack.state_dict())
    assert torch.equal(other(x), stack(x)) and torch.equal(copy.deepcopy(stack)(x), stack(x))
    with torch.autocast("cpu", torch.bfloat16):
        out = stack(x)
    assert (out.float() - stack(x)).abs().max() < 0.1
    out.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in stack.parameters())
    half = stack.bfloat16()(x.bfloat16())
    assert half.dtype == torch.bfloat16 and (half.float() - out.float()).abs().max() < 0.2


@pytest.mark.parametrize("shape", [(0, 5, D), (2, 0, D), (2, 1, D)])
@pytest.mark.parametrize("kind", ["rotary", "additive", "extra keys", "extra tokens", "decoder"])
def test_empty_batches_and_lengths(kind: str, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, requires_grad=True)
    made = {
        "rotary": lambda: MultiHeadAttention(D, 2, pattern=Causal(), position=Rotary(10)),
        "additive": lambda: MultiHeadAttention(D, 4, mechanism=Additive(4, 5)),
        "extra keys": lambda: MultiHeadAttention(
            D, 4, mechanism=ExtraKeys(Exact(Causal()), 2, num_kv_heads=4, head_dim=5)
        ),
        "extra tokens": lambda: SHAPE.stack(2, Window(1, 1), extra_tokens=2),
        "decoder": lambda: SHAPE.decoder(2, position=Sinusoidal(D)),
    }[kind]()
    out = made(x, torch.randn(shape[0], 0, D)) if kind == "decoder" else made(x)
    assert out.shape == shape
    out.sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()
