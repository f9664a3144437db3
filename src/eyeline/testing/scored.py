"""Calls with every kind of score modifier, alone and in a row, where they may go wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import torch
from torch import nn

from eyeline.patterns import (
    Causal,
    Chunks,
    Explicit,
    Full,
    Pattern,
    PerHead,
    SameDocument,
    Strided,
    Window,
    bigbird,
    longformer,
    streaming,
)  # fmt: skip
from eyeline.scores import (
    ALiBi,
    Called,
    OffsetBias,
    OffsetFactor,
    ScoreMod,
    Shaw,
    Softcap,
    T5Bias,
    TransformerXL,
)  # fmt: skip
from eyeline.testing.cases import Case
from eyeline.tokens import Tokens

_Module = TypeVar("_Module", bound=nn.Module)


def scored_cases() -> Iterator[Case]:
    """Each modifier in some of the situations, several of them in a row, dropout, a callable."""
    heads, width = 4, 8
    t5 = trained(T5Bias(heads, num_buckets=8, max_distance=40, bidirectional=True))
    factor, shaw = trained(OffsetFactor(heads, 3)), trained(Shaw(width, 7))
    transformer_xl = trained(TransformerXL(heads, width))
    kinds: dict[str, tuple[ScoreMod, ...]] = {
        "ALiBi": (ALiBi(heads),),
        "T5": (t5,),
        "T5, one side": (trained(T5Bias(heads, max_distance=60, bidirectional=False)),),
        "OffsetBias": (trained(OffsetBias(heads, 5)),),
        "OffsetFactor": (factor,),
        "Shaw": (shaw,),
        "Shaw of each head, no values": (trained(Shaw(width, 2, value_dim=0, num_heads=heads)),),
        "Transformer-XL": (transformer_xl,),
        "T5, then capped": (t5, Softcap(1.5)),
        "capped, then T5": (Softcap(1.5), t5),
    }
    for index, (name, mods) in enumerate(kinds.items()):
        yield from situations(mods, heads=heads, width=width, name=name)[index % 5 :: 5]
    many = (shaw, transformer_xl, factor, t5, Softcap(1.5), ALiBi(heads))
    yield from situations(many, heads=heads, width=width, name="many", dropout_p=0.3)[::3]
    yield from situations((), heads=heads, width=width, name="dropout", dropout_p=0.4)[1::4]
    called = Called(lambda score, b, h, i, j: score + (i - j) / (h + 1.5) * 0.1)
    yield Case("a callable, L=S=67", Causal(), 67, 67, mods=(called,))


def situations(
    mods: tuple[ScoreMod, ...],
    *,
    heads: int,
    width: int,
    value_width: int | None = None,
    name: str = "",
    dropout_p: float = 0.0,
) -> list[Case]:
    """Calls with these modifiers: every kind of part, position and document, empty rows, steps."""
    n = 67
    return [
        Case(
            f"{name}, {what}", pattern, queries, n,
            heads=heads, key_heads=heads // 2 if heads % 2 == 0 else 1,
            width=width, value_width=value_width if value_width is not None else width,
            tokens=None if tokens is None else (tokens, tokens),
            mods=mods, dropout_p=dropout_p,
        )
        for what, pattern, queries, tokens in _places(n, heads)
    ]  # fmt: skip


def _places(n: int, heads: int) -> Iterator[tuple[str, Pattern, int, Tokens | None]]:
    generator = torch.Generator().manual_seed(3)
    seen = torch.rand(n, n, generator=generator) < 0.2
    seen[3], seen[:, 5] = False, False
    scattered = torch.randperm(n, generator=generator)
    scattered[::9] = -1
    own: list[Pattern] = [Causal(), Full(), Strided(5), ~Full()]
    yield "full", Full(), n, None
    yield "streaming, a cached step", streaming(19, 3), 1, None
    packed = Tokens.packed([11, 0, 30, 1, 20], length=n)
    yield "window, packed", Window(9, 4) & SameDocument(), n, packed
    yield "causal, left pads", Causal(), n, Tokens.padded([n, 41], side="left")
    yield "strided", Causal() & Strided(6), n, None
    yield "longformer, gaps", longformer(5, [0, 30]), n, Tokens(torch.arange(n) * 3)
    yield "not causal, out of order", ~Causal(), n, Tokens(scattered)
    yield "bigbird", bigbird(8, 2, 1), n, None
    yield "explicit, with empty rows", Explicit(seen), n, None
    yield "per head", PerHead([own[head % 4] for head in range(heads)]), n, None
    yield "chunks, the last queries", Chunks(13, left=1), 5, None


def trained(module: _Module, *, seed: int = 0) -> _Module:
    """The module in float64, as training may leave it: with numbers that show."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.double().parameters():
        nn.init.normal_(parameter, std=0.5, generator=generator)
    return module
