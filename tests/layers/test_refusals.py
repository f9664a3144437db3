"""What attention layers, blocks and stacks refuse, and in which words."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from eyeline import Causal, Full, PerHead, Tokens
from eyeline.encodings import ComplexOrder, Learned, Rotary, Sinusoidal
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.layers import (
    Block,
    BlockShape,
    DecoderBlock,
    DecoderStack,
    FeedForward,
    GatedFeedForward,
    MultiHeadAttention,
    RMSNorm,
    Stack,
)
from eyeline.mechanisms import Additive, Exact, ExtraKeys, ExtraTokens
from eyeline.scores import ALiBi, Shaw, T5Bias

M = MultiHeadAttention
SHAPE = BlockShape(width=12, heads=3, hidden=7)
x = torch.zeros(2, 5, 12)
tokens = Tokens.arange(0, 5)
q = torch.zeros(2, 3, 5, 4)
SIZES = {"num_kv_heads": 3, "head_dim": 4}

MAKING: list[tuple[Callable[[], object], str]] = [
    (lambda: M(12, 5), "embed_dim=12 is no multiple of num_heads=5: .* head_dim=2"),
    (lambda: M(0, 1), "embed_dim=0: a whole number from 1"),
    (lambda: M(12, True), "num_heads=True"),
    (lambda: M(12, 3, kdim=0), "kdim=0"),
    (lambda: M(12, 3, vdim=-1), "vdim=-1"),
    (lambda: M(12, 3, head_dim=0), "head_dim=0"),
    (lambda: M(12, 6, num_kv_heads=4), "num_heads=6 cannot share num_kv_heads=4 evenly"),
    (lambda: M(12, 3, num_kv_heads=0), "num_kv_heads=0"),
    (lambda: M(12, 3, dropout=1.0), "dropout=1.0: a probability"),
    (lambda: M(12, 3, dropout=True), "dropout=True"),
    (lambda: M(12, 3, pattern=Causal), "write Causal()"),
    (lambda: M(12, 3, pattern="causal"), "parse"),  # type: ignore[arg-type]
    (lambda: M(12, 3, pattern=torch.zeros(3, 5, 5, dtype=torch.bool)), r"\(batch, .*\(head, "),
    (lambda: M(12, 3, pattern=torch.zeros(5, 5)), "score_mod"),
    (lambda: M(12, 3, pattern=Full(), mechanism=Exact()), "pattern=full and mechanism=Exact"),
    (lambda: M(12, 3, mechanism=Causal()), "mechanism=causal is a pattern"),  # type: ignore[arg-type]
    (lambda: M(12, 3, mechanism=len), "mechanism is a builtin"),  # type: ignore[arg-type]
    (lambda: M(12, 3, mechanism=Exact(), dropout=0.1), "dropout beside mechanism=Exact"),
    (lambda: M(12, 3, mechanism=Exact(), position=ALiBi(3)), "score modifiers beside mechanism"),
    (lambda: M(12, 3, position=Rotary(6)), "turns heads of 6, these are 4"),
    (lambda: M(12, 3, position=Sinusoidal(10)), "width 10 for queries of width 12"),
    (lambda: M(12, 3, kdim=5, position=Sinusoidal(12)), "width 12 for keys of width 5"),
    (lambda: M(12, 3, position=[Rotary(4), Rotary(4)]), "one Rotary a layer"),
    (lambda: M(12, 3, position=[Sinusoidal(12), Learned(5, 12)]), "one added encoding"),
    (lambda: M(12, 3, position=ComplexOrder(5, 6)), "position is a ComplexOrder"),  # type: ignore[arg-type]
    (lambda: M(12, 3, position=3), "position is a int"),  # type: ignore[arg-type]
    (lambda: M(12, 3, position=ALiBi), "class ALiBi: make one"),
    (lambda: M(12, 3, position=torch.zeros(5, 5)), "position is a Tensor"),  # type: ignore[arg-type]
    (lambda: M(12, 3, position=ALiBi(4)), "made for 4 heads, the query has 3"),
    (lambda: M(12, 3, position=Shaw(7, 2)), "Shaw key vectors are 7 wide, a head's are 4"),
    (lambda: M(12, 3, position=Shaw(4, 2, value_dim=5)), "Shaw value vectors are 5 wide"),
    (lambda: M(12, 3, mechanism=Exact(score_mod=T5Bias(2, bidirectional=True))),
     "T5Bias was made for 2 heads"),
    (lambda: M(12, 3, pattern=PerHead([Causal(), Full()])), "per_head has 2 patterns; .* 3 query"),
    (lambda: M(12, 3, mechanism=ExtraTokens(Exact(score_mod=ALiBi(4)), 2)), "made for 4 heads"),
    (lambda: M(12, 3, mechanism=ExtraKeys(Exact(score_mod=ALiBi(4)), 1, **SIZES)),
     "made for 4 heads"),
    (lambda: M(12, 3, mechanism=ExtraKeys(Exact(), 1, num_kv_heads=1, head_dim=4)),
     "num_kv_heads=1, head_dim=4; the heads have num_kv_heads=3, head_dim=4"),
    (lambda: M(12, 3, num_kv_heads=1, mechanism=ExtraKeys(Exact(), 1, num_kv_heads=1, head_dim=5)),
     "num_kv_heads=1, head_dim=5; the heads have num_kv_heads=1, head_dim=4"),
    (lambda: M(12, 3, mechanism=Additive(2, 4)), "num_heads=2, head_dim=4; the heads have"),
    (lambda: M(12, 3, mechanism=Additive(3, 5)), "num_heads=3, head_dim=5; the heads have"),
    (lambda: Exact(dropout=-0.1), "dropout=-0.1"),
    (lambda: Additive(3, 0), "head_dim=0"),
    (lambda: Additive(3, 4, dropout=2), "dropout=2"),
    (lambda: ExtraKeys(Exact(), 0, num_kv_heads=3, head_dim=4), "count=0"),
    (lambda: ExtraTokens(Exact(), 0), "count=0"),
    (lambda: FeedForward(12, 0), "hidden=0"),
    (lambda: FeedForward(12, 7, activation="tanh"), "activation='tanh': it is one of relu"),  # type: ignore[arg-type]
    (lambda: FeedForward(12, 7, dropout=1), "dropout=1"),
    (lambda: GatedFeedForward(12, 7, activation="sin"), "activation='sin'"),  # type: ignore[arg-type]
    (lambda: RMSNorm(0), "width=0"),
    (lambda: Block(M(12, 3), FeedForward(12, 7), norm="both"), "norm='both'"),  # type: ignore[arg-type]
    (lambda: Block(M(12, 3), FeedForward(12, 7), dropout=1.5), "dropout=1.5"),
    (lambda: Block(M(12, 3), FeedForward(8, 7)), "FeedForward of width 8 .* embed_dim=12"),
    (lambda: Block(M(12, 3), GatedFeedForward(8, 7)), "GatedFeedForward of width 8 .* embed_dim"),
    (lambda: Block(torch.nn.Linear(12, 12), FeedForward(12, 7)), "attention is a Linear: .*Multi"),  # type: ignore[arg-type]
    (lambda: DecoderBlock(M(12, 3), M(8, 2), FeedForward(12, 7)), "embed_dim=12 .*=8: a block"),
    (lambda: DecoderBlock(M(12, 3), M(12, 2), FeedForward(8, 7)), "FeedForward of width 8"),
    (lambda: DecoderBlock(M(12, 3), Exact(), FeedForward(12, 7)), "cross_attention is a Exact"),  # type: ignore[arg-type]
    (lambda: Stack([]), "at least one block"),
    (lambda: Stack([SHAPE.block(), BlockShape(8, 2, 7).block()]), r"widths \[12, 8\]"),
    (lambda: Stack([SHAPE.block()], position=Sinusoidal(8)), "added to vectors of width 12"),
    (lambda: Stack([SHAPE.block()], position=Rotary(4)), "position is a Rotary: a stack adds"),  # type: ignore[arg-type]
    (lambda: Stack([SHAPE.block()], position=ALiBi(3)), "position is a ALiBi: a stack adds"),  # type: ignore[arg-type]
    (lambda: Stack([SHAPE.block()], position=Sinusoidal), "class Sinusoidal: make one"),  # type: ignore[arg-type]
    (lambda: DecoderStack([SHAPE.decoder_block()], position=Rotary(4)), "position is a Rotary"),  # type: ignore[arg-type]
    (lambda: Stack([M(12, 3)]), "blocks hold a MultiHeadAttention: .* Block"),  # type: ignore[list-item]
    (lambda: Stack([SHAPE.decoder_block()]), "blocks hold a DecoderBlock"),  # type: ignore[list-item]
    (lambda: DecoderStack([SHAPE.block()]), "blocks hold a Block: .* DecoderBlock"),  # type: ignore[list-item]
    (lambda: Stack([SHAPE.block()], extra_tokens=2), "extra_tokens=2, .* expects 0"),
    (lambda: Stack([SHAPE.block(extra_tokens=2)]), "extra_tokens=0, .* expects 2"),
    (lambda: SHAPE.stack(3, [Causal(), Full()]), "2 patterns for 3 layers"),
    (lambda: SHAPE.stack(2, position_at="last"), "position_at='last'"),  # type: ignore[arg-type]
    (lambda: BlockShape(12, 3, 7, norms="batch"), "norms='batch'"),  # type: ignore[arg-type]
    (lambda: BlockShape(12, 3, 7, feed="swiglu", dropout=0.1), "feed='swiglu' has no dropout"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "words"), MAKING, ids=[words for _, words in MAKING])
def test_making(make: Callable[[], object], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        make()


CALLING: list[tuple[Callable[[], object], str]] = [
    (lambda: M(12, 3)(x[0]), r"query \(5, 12\) must be \(batch, length, 12\): batch first"),
    (lambda: M(12, 3)(x[..., :11]), r"query \(2, 5, 11\)"),
    (lambda: M(12, 3)(x.double()), "query is torch.float64 and the layer.s weights are torch.f"),
    (lambda: M(12, 3)(x, x[..., :7]), r"key \(2, 5, 7\) must be \(batch, length, 12\)"),
    (lambda: M(12, 3, vdim=7)(x, x), r"value \(2, 5, 12\) must be \(batch, length, 7\)"),
    (lambda: M(12, 3)(x, value=x), "value without key"),
    (lambda: M(12, 3, kdim=7)(x), "self attention with embed_dim=12, kdim=7 and vdim=12"),
    (lambda: M(12, 3)(x, x, x[:, :4]), "length differs"),
    (lambda: M(12, 3)(x, M(12, 3).project(x), x), "value beside projected keys"),
    (lambda: M(12, 3)(x, q_tokens=Tokens.arange(0, 4)), r"q_tokens has shape \(4,\); the tensors"),
    (lambda: M(12, 3)(x, x, k_tokens=Tokens.padded([4, 5, 5])), r"_tokens has shape \(3, 5\)"),
    (lambda: M(12, 3, position=Rotary(4))(x, q_tokens=Tokens.arange(0, 4)),
     r"q_tokens has shape \(4,\); the input needs \(5,\) or \(2, 5\)"),
    (lambda: M(12, 3, position=Rotary(4))(x, x[:, :3], k_tokens=Tokens.padded([3, 3, 3])),
     "5 queries cannot be the last of 3 keys: say where"),
    (lambda: M(12, 3, position=Rotary(4))(x, x[:, :3]), "5 queries cannot be the last of 3 keys"),
    (lambda: M(12, 3)(x, x, q_tokens=tokens), "q_tokens without k_tokens"),
    (lambda: M(12, 3, position=Rotary(4))(x, x, q_tokens=tokens), "q_tokens without k_tokens"),
    (lambda: M(12, 3, pattern=Causal())(x, x[:, :3]), "5 queries but 3 keys"),
    (lambda: M(12, 3, position=Learned(4, 12))(x), "position 4: they go from -1 to 3"),
    (lambda: M(12, 3)(x, cache=M(12, 3).new_cache(2)), "q_tokens is what cache.advance"),
    (lambda: M(12, 3)(x, q_tokens=tokens, k_tokens=Tokens.arange(0, 5),
                      cache=M(12, 3).new_cache(2)), "the cache knows k_tokens"),
    (lambda: M(12, 3)(x, x, cache=M(12, 3).new_cache(2)), "a cache is for self attention"),
    (lambda: ExtraKeys(Exact(), 2, num_kv_heads=1, head_dim=4)(q, q, q),
     "num_kv_heads=1, head_dim=4; the heads have num_kv_heads=3, head_dim=4"),
    (lambda: Additive(2, 4)(q, q, q), "w_q .* 3 heads"),
    (lambda: M(12, 3, mechanism=ExtraTokens(Exact(), 2))(x), r"ExtraTokens.beside"),
    (lambda: M(12, 3, mechanism=ExtraTokens(Exact(), 2))(x, q_tokens=tokens),
     r"the first 2 slots must be nobody's .* \[0, 1\]"),
    (lambda: SHAPE.stack(2)(x[..., :7]), "must be"),
    (lambda: SHAPE.stack(2)(x, q_tokens=Tokens.arange(0, 3)), r"q_tokens has shape \(3,\)"),
    (lambda: SHAPE.stack(2)(x, caches=[]), "0 caches for 1 kinds of layers"),
    (lambda: SHAPE.stack(2, position=Learned(4, 12))(x), "position 4"),
    (lambda: SHAPE.decoder(2)(x, []), "0 projected memories for 2 blocks"),
    (lambda: SHAPE.decoder(3)(x, M(12, 3).project(x)), "one memory projected .* 3 blocks"),  # type: ignore[arg-type]
]  # fmt: skip


@pytest.mark.parametrize(("call", "words"), CALLING, ids=[words for _, words in CALLING])
def test_calling(call: Callable[[], object], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        call()


def test_what_is_meaningful_but_not_served() -> None:
    extra = M(12, 3, mechanism=ExtraTokens(Exact(Causal()), 2))
    with pytest.raises(NotSupported, match="looks at none that come later"):
        extra(x, q_tokens=Tokens.listed([-1, -1, 0, 1, 2]))
    packed = Tokens.listed([-1, -1, 0, 1, 2], [-1, -1, 0, 0, 1])
    with pytest.raises(NotSupported, match="one document to the next"):
        M(12, 3, mechanism=ExtraTokens(Exact(Full()), 2))(x, q_tokens=packed)
    with pytest.raises(NotSupported, match="one document to the next"):
        SHAPE.stack(1, extra_tokens=2)(x, q_tokens=Tokens.packed([2, 3]))
    with pytest.raises(NotSupported, match="ExtraTokens does not read in steps"):
        extra.new_cache(1)
    with pytest.raises(NotSupported, match="no_grad"):
        layer = M(12, 3, pattern=Causal())
        cache = layer.new_cache(2)
        cache.cache.advance(tokens)
        layer(x, q_tokens=tokens, cache=cache)
