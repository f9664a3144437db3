"""The score modifiers once more: dense formulas, written from the papers, and calls to try them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from eyeline import (
    Blocks,
    Causal,
    Explicit,
    Full,
    Pattern,
    Strided,
    Tokens,
    Window,
    bigbird,
    dense_mask,
    longformer,
    streaming,
)  # fmt: skip
from eyeline.scores import (
    ALiBi,
    OffsetBias,
    OffsetFactor,
    ScoreMod,
    Shaw,
    Softcap,
    T5Bias,
    TransformerXL,
)  # fmt: skip
from eyeline.testing.cases import trained

BATCH, HEADS, KEY_HEADS, WIDTH, N = 2, 6, 2, 5, 47


@dataclass(frozen=True)
class Call:
    """What attention is asked for. mask and distance (key - query) are (B, H, L, S)."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor
    distance: Tensor
    scale: float

    def scores(self, q: Tensor | None = None) -> Tensor:
        k = self.k.repeat_interleave(HEADS // KEY_HEADS, 1)
        return self.scale * ((q if q is not None else self.q) @ k.mT)

    def weights(self, score: Tensor) -> Tensor:
        """The softmax over who may be looked at; 0 in empty rows."""
        shown = score.masked_fill(~self.mask, -1e300).softmax(-1)
        return shown * self.mask

    def output(self, weight: Tensor) -> Tensor:
        return weight @ self.v.repeat_interleave(HEADS // KEY_HEADS, 1)

    def with_scores(self, score: Tensor) -> Tensor:
        return self.output(self.weights(score))


@dataclass(frozen=True)
class Place:
    """Who asks and who may look at whom."""

    name: str
    pattern: Pattern
    q: Tokens
    k: Tokens

    def tensors(self, value_width: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
        generator = torch.Generator().manual_seed(1)
        shapes = (
            (BATCH, HEADS, self.q.length, WIDTH),
            (BATCH, KEY_HEADS, self.k.length, WIDTH),
            (BATCH, KEY_HEADS, self.k.length, value_width),
        )
        drawn = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
        return [x.to(dtype).requires_grad_() for x in drawn]

    def call(self, tensors: list[Tensor], scale: float) -> Call:
        mask = dense_mask(self.pattern, q_tokens=self.q, k_tokens=self.k, batch=BATCH, heads=HEADS)
        size = (BATCH, HEADS, self.q.length, self.k.length)
        q, k = (x.positions.broadcast_to(BATCH, x.length) for x in (self.q, self.k))
        distance = (k[:, None, None, :] - q[:, None, :, None]).expand(size)
        return Call(*tensors, mask.broadcast_to(size), distance, scale)


def places() -> Iterator[Place]:
    plain = Tokens.arange(0, N)
    padded = Tokens.padded([N, 29], side="left")
    packed = Tokens.packed([13, 0, 20, 1, 11], length=N)
    scattered = torch.randperm(N, generator=torch.Generator().manual_seed(2))
    scattered[::7] = -1
    some = torch.rand(N, N, generator=torch.Generator().manual_seed(4)) < 0.3
    some[3], some[:, 5] = False, False
    for name, pattern, q, k in (
        ("full", Full(), plain, plain),
        ("causal, left pads", Causal(), padded, padded),
        ("window", Window(6, 3), plain, plain),
        ("streaming", streaming(11, 2), plain, plain),
        ("strided", Causal() & Strided(5), plain, plain),
        ("longformer", longformer(5, [0, 20]), plain, plain),
        ("bigbird", bigbird(8, 2, 1), plain, plain),
        ("blocks, packed", Blocks([[1, 0], [1, 1]], 30), packed, packed),
        ("out of order, not causal", ~Causal(), Tokens(scattered), Tokens(scattered)),
        ("gaps", streaming(11, 2), Tokens(torch.arange(N) * 3), Tokens(torch.arange(N) * 3)),
        ("a cached step", streaming(31, 2), plain.last(1), plain),
        ("three cached steps, left pads", Causal(), padded.last(3), padded),
        ("more queries than keys", Full(), plain, Tokens.arange(5, 36)),
        ("explicit, with empty rows", Explicit(some), plain, plain),
    ):
        yield Place(name, pattern, q, k)


PLACES = list(places())


def alibi(mod: ALiBi, call: Call) -> Tensor:
    """Press 2022: q·k - m·|i - j|, m = 2^(-8/H), 2^(-16/H), … and for 6 heads those of 4 and 8."""
    m = torch.tensor([2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3], dtype=torch.float64)
    return call.with_scores(call.scores() - m[:, None, None] * call.distance.abs())


def t5_bucket(distance: int, buckets: int, most: int, *, both: bool) -> int:
    """Raffel 2020, for one distance: exact ones, then logarithmic ones up to the last."""
    if both:
        half = buckets // 2
        return half * (distance > 0) + t5_bucket(-abs(distance), half, most, both=False)
    away, exact = max(-distance, 0), buckets // 2
    if away < exact:
        return away
    steps = math.log(away / exact) / math.log(most / exact) * (buckets - exact)
    return min(exact + math.floor(steps + 1e-6), buckets - 1)


def t5_added(mod: T5Bias, call: Call) -> Tensor:
    sizes = mod.num_buckets, mod.max_distance
    bucket = call.distance[:, 0].clone().apply_(
        lambda d: t5_bucket(int(d), *sizes, both=mod.bidirectional)
    )  # fmt: skip
    return mod.weight[bucket].movedim(-1, 1)


def t5(mod: T5Bias, call: Call) -> Tensor:
    return call.with_scores(call.scores() + t5_added(mod, call))


def offset_bias(mod: OffsetBias, call: Call) -> Tensor:
    m = mod.max_distance
    return call.with_scores(
        call.scores() + mod.weight[call.distance[:, 0].clip(-m, m) + m].movedim(-1, 1)
    )


def offset_factor(mod: OffsetFactor, call: Call) -> Tensor:
    m = mod.max_distance
    factor = mod.weight[call.distance[:, 0].clip(-m, m) + m].movedim(-1, 1)
    return call.output(call.weights(call.scores()) * factor)


def shaw(mod: Shaw, call: Call) -> Tensor:
    """Shaw 2018, (3) and (4): e = q·(k + a^K) · scale, z = Σ α (v + a^V)."""
    m = mod.max_distance
    clipped = call.distance[:, 0].clip(-m, m) + m
    own = mod.num_heads is not None
    equation = "bhle,hblse->bhls" if own else "bhle,blse->bhls"
    a_k = mod.key[:, clipped] if own else mod.key[clipped]
    score = call.scores() + call.scale * torch.einsum(equation, call.q, a_k)
    weight = call.weights(score)
    if mod.value is None:
        return call.output(weight)
    a_v = mod.value[:, clipped] if own else mod.value[clipped]
    equation = "bhls,hblse->bhle" if own else "bhls,blse->bhle"
    return call.output(weight) + torch.einsum(equation, weight, a_v)


def transformer_xl(mod: TransformerXL, call: Call) -> Tensor:
    """Dai 2019: A = q·k + q·W R_{i-j} + u·k + v·W R_{i-j}, all of it scaled."""
    width = mod.encoding.width
    back = -call.distance[:, 0].to(torch.float64)
    waves = [back / 10000.0 ** (2 * j / width) for j in range(width // 2)]
    r = torch.stack([f(w) for w in waves for f in (torch.sin, torch.cos)], -1)
    placed = torch.einsum("hed,blsd->bhlse", mod.weight.view(HEADS, WIDTH, width), r)
    u, v = (x[:, None, :] for x in (mod.u, mod.v))
    content = call.scores(call.q + u)
    return call.with_scores(
        content + call.scale * torch.einsum("bhle,bhlse->bhls", call.q + v, placed)
    )


def softcap(mod: Softcap, call: Call) -> Tensor:
    return call.with_scores(mod.limit * torch.tanh(call.scores() / mod.limit))


def dense(mod: ScoreMod) -> Callable[[Call], Tensor]:
    """The formula of a modifier."""
    known: dict[type, Callable[..., Tensor]] = {
        ALiBi: alibi, T5Bias: t5, OffsetBias: offset_bias, OffsetFactor: offset_factor,
        Shaw: shaw, TransformerXL: transformer_xl, Softcap: softcap,
    }  # fmt: skip
    return lambda call: known[type(mod)](mod, call)


def mods() -> Iterator[tuple[str, ScoreMod, int]]:
    """Each modifier with numbers that show, and the width of the values it is tried with."""
    yield "ALiBi", ALiBi(HEADS), WIDTH
    yield "T5, both sides", _t5(bidirectional=True), WIDTH
    yield "T5, one side", _t5(bidirectional=False), WIDTH
    yield "OffsetBias", trained(OffsetBias(HEADS, 4)), WIDTH
    yield "OffsetFactor", trained(OffsetFactor(HEADS, 4)), WIDTH
    yield "Shaw", trained(Shaw(WIDTH, 5, value_dim=7)), 7
    yield "Shaw of each head", trained(Shaw(WIDTH, 3, num_heads=HEADS)), WIDTH
    yield "Shaw without values", trained(Shaw(WIDTH, 40, value_dim=0)), WIDTH
    yield "Transformer-XL", trained(TransformerXL(HEADS, WIDTH, width=8)), 7
    yield "Softcap", Softcap(0.7), WIDTH


def _t5(*, bidirectional: bool) -> T5Bias:
    return trained(T5Bias(HEADS, num_buckets=12, max_distance=30, bidirectional=bidirectional))


MODS = list(mods())
