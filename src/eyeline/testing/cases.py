"""The situations every part is tried in: prime sizes, ragged ends, pads, documents, empty rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar, final

import torch
from torch import Tensor, nn

from eyeline.kernels.request import Request
from eyeline.patterns import (
    Blocks,
    Causal,
    Chunks,
    Dilated,
    Explicit,
    FixedColumns,
    Full,
    Global,
    Grid,
    Pattern,
    PerHead,
    Predicate,
    Random,
    SameSegment,
    Sinks,
    Strided,
    Window,
    bigbird,
    longformer,
    prefix_lm,
    sliding_window,
    sparse_transformer,
    streaming,
)
from eyeline.scores import (
    ALiBi,
    Called,
    Dropout,
    OffsetBias,
    OffsetFactor,
    ScoreMod,
    Shaw,
    Softcap,
    T5Bias,
    TransformerXL,
)
from eyeline.tokens import Tokens, default_tokens


@final
@dataclass(frozen=True)
class Case:
    """One attention call without its numbers. mods: what is done to its scores, in order."""

    name: str
    pattern: Pattern
    queries: int
    keys: int
    batch: int = 2
    heads: int = 4
    key_heads: int = 2
    width: int = 8
    value_width: int = 8
    tokens: tuple[Tokens, Tokens] | None = None
    mods: tuple[ScoreMod, ...] = ()
    dropout_p: float = 0.0

    def __str__(self) -> str:
        return self.name

    def request(
        self, dtype: torch.dtype = torch.float64, *, seed: int = 0, spread: float = 1.0
    ) -> Request:
        """Random numbers of this case. spread: how many times wider the scores are."""
        generator = torch.Generator().manual_seed(seed)

        def draw(heads: int, length: int, width: int) -> Tensor:
            shape = (self.batch, heads, length, width)
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        q = (draw(self.heads, self.queries, self.width) * spread).to(dtype)
        k = draw(self.key_heads, self.keys, self.width).to(dtype)
        v = draw(self.key_heads, self.keys, self.value_width).to(dtype)
        tokens = self.tokens if self.tokens is not None else default_tokens(self.queries, self.keys)
        scale = max(self.width, 1) ** -0.5
        for mod in self.mods:
            mod.check(self.heads, self.width, self.value_width)
            q = mod.shifted(q)
        steps = tuple(step for mod in self.mods for step in mod.steps())
        if self.dropout_p:
            steps += (Dropout(self.dropout_p, seed),)
        return Request(q, k, v, self.pattern, *tokens, scale, steps=steps)

    @property
    def learned(self) -> tuple[Tensor, ...]:
        """What is trained in the mods."""
        modules = (mod for mod in self.mods if isinstance(mod, nn.Module))
        return tuple(x for module in modules for x in module.parameters() if x.requires_grad)

    def wide(self) -> Case:
        """The same case where keys and values differ in width."""
        return replace(self, name=f"{self.name}, Ev=5", value_width=5)


def cases() -> Iterator[Case]:
    """Small cases of every kind of pattern, length and token."""
    for name, pattern in _patterns():
        for length in (1, 2, 67, 131):
            yield Case(f"{name}, L=S={length}", pattern, length, length)
        yield Case(f"{name}, L=5 S=131", pattern, 5, 131)
    yield from _sparse()
    yield from _varying()
    yield from _lengths()
    yield from _heads()
    yield from _tokens()
    yield from _bound()


def _patterns() -> Iterator[tuple[str, Pattern]]:
    yield "full", Full()
    yield "causal", Causal()
    yield "window", Window(left=7, right=3)
    yield "one-sided", Window(left=None, right=5)
    yield "sliding_window", sliding_window(17)
    yield "streaming", streaming(size=13, sinks=3)
    yield "prefix_lm", prefix_lm(11)
    yield "chunks", Chunks(23)
    yield "mixed", (Causal() | Sinks(2)) & ~Chunks(7) | Window(0, 0)


def _sparse() -> Iterator[Case]:
    """The fixed patterns of the literature, with a ragged end and with fewer queries than keys."""
    layout = [[1, 0, 0, 1], [1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 1, 1]]
    for name, pattern in (
        ("strided", Strided(7)),
        ("causal & strided", Causal() & Strided(13)),
        ("dilated", Dilated(5, left=6, right=2)),
        ("fixed columns", FixedColumns(11, 3)),
        ("global", Global(3)),
        ("global positions", Global([0, 17, 18, 66])),
        ("chunks and neighbours", Chunks(19, left=1, right=2)),
        ("blocks, one row empty", Blocks(layout, 37)),
        ("grid", Grid(10, 13, 2)),
        ("random blocks", Random(2, 16, head=0, length=131)),
        ("longformer", longformer(9, [0, 30])),
        ("strided transformer", sparse_transformer(11)),
        ("fixed transformer", sparse_transformer(17, kind="fixed", width=2)),
        ("strided without a window", Strided(7) & ~Window(9, 9) | Global([5])),
    ):
        for queries, keys in ((131, 131), (5, 131)):
            yield Case(f"{name}, L={queries} S={keys}", pattern, queries, keys)


def _varying() -> Iterator[Case]:
    """Heads and rows that follow patterns of their own."""
    members = [Causal(), Sinks(0), Strided(5) | Global(1), Chunks(16, 1, 1)]
    padded = Tokens.padded([131, 53], side="left")
    packed = Tokens.packed([40, 0, 91])
    packed = replace(packed, segments=packed.positions // 30)
    for name, pattern in (
        ("per head, one empty", PerHead(members)),
        ("per head & same_segment", PerHead(members) & SameSegment() | Window(0, 0)),
        ("random per head and length", Random(2, 16, seed=1)),
        ("bigbird", bigbird(16, 2, 1)),
        ("causal & random of a length", Causal() & Random(3, 10, length=131)),
    ):
        yield Case(f"{name}, L=S=131", pattern, 131, 131)
        yield Case(f"{name}, left pads", pattern, 131, 131, tokens=(padded, padded))
        yield Case(f"{name}, packed", pattern, 131, 131, tokens=(packed, packed), key_heads=1)


def _lengths() -> Iterator[Case]:
    """Around the window and around the tile: 1 … 2W + 1 in the tests, the edges here."""
    size = 37
    for length in (size - 1, size, size + 1, 2 * size + 1, 63, 64, 65, 127, 128, 129, 257):
        yield Case(f"window of {size}, L=S={length}", sliding_window(size), length, length)
    # Long enough for rows of equal tiles, and for parts that share queries and must be merged.
    yield Case("a run of tiles", sliding_window(37), 389, 389)
    yield Case("a run and a slab", streaming(size=37, sinks=3), 389, 389)
    yield Case("both sides and a prefix", Window(40, 40) | Sinks(5), 389, 389)
    yield Case("more queries than keys, full", Full(), 71, 13)


def _heads() -> Iterator[Case]:
    for heads, key_heads in ((8, 8), (8, 2), (8, 1), (1, 1)):
        for width in (1, 2, 3, 33, 96):
            yield Case(
                f"{heads}/{key_heads} heads of {width}", streaming(13, 2), 67, 67,
                heads=heads, key_heads=key_heads, width=width, value_width=width,
            )  # fmt: skip
    yield Case("batch equal to heads", Causal(), 67, 67, batch=4, heads=4, key_heads=4)


def _tokens() -> Iterator[Case]:
    n = 131
    middle = torch.arange(n)
    middle[70:90] = -1
    documents = torch.arange(n) // 29
    kinds = {
        "left pads": Tokens.padded([n, 53], side="left"),
        "right pads": Tokens.padded([n, 53], side="right"),
        "middle pads": Tokens(middle),
        "an empty row": Tokens.padded([0, n], side="left"),
        "packed": Tokens.packed([0, 1, 30, 0, 77, 2, 21]),
        "packed with a rest": Tokens.packed([31, 64], length=n),
        "a batch of packings": Tokens.packed([[31, 64], [1, 7, 123]], length=n),
        "packed in segments": replace(Tokens.packed([31, 100]), segments=torch.arange(n) // 13 % 3),
        "two rows packed apart": Tokens(
            torch.arange(n).repeat(2, 1), torch.stack([documents, documents // 2])
        ),
        "out of order": Tokens(torch.arange(n).flip(0)),
        "gaps": Tokens(torch.arange(n) * 3),
    }
    for kind, tokens in kinds.items():
        for name, pattern in _token_patterns():
            yield Case(f"{kind}, {name}", pattern, n, n, tokens=(tokens, tokens))
    yield Case(
        "left pads, L=3",
        streaming(13, 2),
        3,
        n,
        tokens=(kinds["left pads"].last(3), kinds["left pads"]),
    )


def _token_patterns() -> Iterator[tuple[str, Pattern]]:
    yield "causal", Causal()
    yield "causal | same_segment", Causal() | SameSegment()
    yield "streaming", streaming(13, 3)
    yield "not causal", ~Causal()
    yield "not same_segment", ~SameSegment()


def _bound() -> Iterator[Case]:
    generator = torch.Generator().manual_seed(1)
    mask = torch.rand(67, 67, generator=generator) < 0.3
    mask[5], mask[:, 7] = False, False
    per_head = torch.rand(2, 4, 67, 67, generator=generator) < 0.4
    per_head[0, 1] = False
    yield Case("explicit", Explicit(mask), 67, 67)
    yield Case("explicit per head, one head empty", Explicit(per_head), 67, 67)
    yield Case("explicit, L=31 S=67", Explicit(mask[:31]), 31, 67)
    yield Case("explicit & causal", Explicit(mask) & Causal(), 67, 67)
    blocks = torch.rand(11, 11, generator=generator) < 0.3
    scattered = Explicit(blocks.repeat_interleave(64, 0).repeat_interleave(64, 1))
    yield Case("scattered blocks", scattered, 704, 704, batch=1, heads=2, key_heads=1)
    yield Case("one row for all", Explicit(mask[:1]), 67, 67)
    yield Case("predicate", Predicate(lambda b, h, q, k: (q - k) % (h + 2) == b), 67, 67)


# Calls with every kind of score modifier, alone and in a row, where they may go wrong.

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
    yield "window, packed", Window(9, 4), n, packed
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
