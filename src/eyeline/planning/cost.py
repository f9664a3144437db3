"""What a call costs: exact counts, of a pattern, a mechanism or a layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import final

import torch

from eyeline.checks import check_size, wide_dtype
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.patterns import Pattern
from eyeline.planning.dense import described, settled
from eyeline.planning.pairs import pairs
from eyeline.planning.peeling import rules
from eyeline.planning.planner import plan
from eyeline.tokens import Tokens, default_tokens

# What a call is made of, as far as its cost goes: its sizes, and how many multiplications.


@final
@dataclass(frozen=True)
class CallSizes:
    """L queries and S keys of one row: so many heads of both, and their widths E and Ev."""

    length: int
    key_length: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int

    @property
    def products(self) -> int:
        """E + Ev: the multiplications of a pair that looks, q·k and weight·v."""
        return self.head_dim + self.value_dim

    @property
    def numbers(self) -> int:
        """How many numbers queries, keys, values and the output are."""
        keys = self.kv_heads * self.key_length * self.products
        return self.heads * self.length * self.products + keys


@final
@dataclass(frozen=True)
class Work:
    """What one call does for one row, all heads together, forward.

    pairs: the pairs of a query and a key, or of what stands in a key's place, that look; computed:
    those that are multiplied, allowed or not. multiplications: of numbers, in the products that
    the formula has; computed_multiplications: in those that are made, with tiles, chunks and ones
    that hold more. What does not grow with the width of a head is not counted: exponentials,
    scales, gates. projections: the multiplications of a layer's projections, apart from those.
    numbers: how many are read and written at least. steps: how many operations must wait for each
    other. backward: multiplications of the backward pass; None where they are not known.
    """

    call: CallSizes
    pairs: int
    computed: int
    multiplications: int
    computed_multiplications: int
    numbers: int
    steps: int = 1
    projections: int = 0
    backward: int | None = None


@final
@dataclass(frozen=True)
class Asked:
    """The sizes of a call as far as somebody said them; None: whatever is asked may choose."""

    length: int
    key_length: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    value_dim: int | None = None

    def __post_init__(self) -> None:
        for name in ("length", "key_length"):
            self._check(name, least=0)
        for name in ("heads", "kv_heads", "head_dim", "value_dim"):
            self._check(name, least=1)

    def _check(self, name: str, *, least: int) -> None:
        if getattr(self, name) is not None:
            check_size(name, getattr(self, name), least=least)

    def known(self, name: str, **own: int | None) -> Asked:
        """With what a mechanism was made for. Raises InvalidArgument if it was not for this."""
        for size, value in own.items():
            asked = getattr(self, size)
            if asked is not None and value is not None and asked != value:
                raise InvalidArgument(f"{name} was made for {size}={value}, not {asked}")
        return replace(self, **{size: x for size, x in own.items() if x is not None})

    def without_heads(self, name: str, width: int) -> CallSizes:
        """A layer from tokens (L, width) to tokens. Raises InvalidArgument if heads are asked."""
        for size in ("key_length", "heads", "kv_heads", "head_dim", "value_dim"):
            if getattr(self, size) is not None:
                raise InvalidArgument(f"{name} has its own width and no heads: {size} says nothing")
        return CallSizes(self.length, self.length, 1, 1, width, width)

    @property
    def call(self) -> CallSizes:
        """What nobody said: S = L, one head, as many key heads, 64 wide, values as keys."""
        heads = self.heads if self.heads is not None else 1
        head_dim = self.head_dim if self.head_dim is not None else 64
        kv_heads = self.kv_heads if self.kv_heads is not None else heads
        if heads % kv_heads:
            raise InvalidArgument(f"{heads} query heads cannot share {kv_heads} key heads evenly")
        return CallSizes(
            length=self.length,
            key_length=self.key_length if self.key_length is not None else self.length,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            value_dim=self.value_dim if self.value_dim is not None else head_dim,
        )


def of_pattern(
    pattern: Pattern, call: CallSizes, q: Tokens | None = None, k: Tokens | None = None
) -> Work:
    """Exact attention: a product of E and one of Ev for each pair that looks, head by head.

    Backward a pair takes part in five: q·k again (E), dO·v (Ev), and its share of dV (Ev), dQ (E)
    and dK (E). q, k: what stands where; keys at 0 … S-1, and queries the last of them, if None.
    """
    if q is None or k is None:
        q, k = default_tokens(call.length, call.key_length)
    looking = computed = 0
    for rule, count in rules(settled(pattern, q, k), call.heads):
        looking += count * pairs(rule, q_tokens=q, k_tokens=k)
        computed += count * plan(rule, q_tokens=q, k_tokens=k).area
    return Work(
        call=call,
        pairs=looking,
        computed=computed,
        multiplications=looking * call.products,
        computed_multiplications=computed * call.products,
        numbers=call.numbers,
        backward=looking * (3 * call.head_dim + 2 * call.value_dim),
    )


def numbers_in(module: torch.nn.Module) -> int:
    """How many trained numbers a module holds."""
    return sum(x.numel() for x in module.parameters())


class Countable(ABC):
    """A mechanism or layer, of which it is asked what a call does and how far tokens are heard."""

    @abstractmethod
    def work(self, asked: Asked) -> Work | None:
        """What one call does; None where that is not known.

        Raises InvalidArgument for sizes that it was not made for.
        """

    def path(self, length: int) -> int | Pattern:
        """max over i, j of dist(i, j) of layers that are all like it, or the pattern that says it.

        See ``max_path_length``. Raises NotSupported where it is not known, as by default.
        """
        raise NotSupported(f"{type(self).__name__} has neither a pattern nor a path")

    def square_bytes(self, length: int, *, backward: bool) -> int:
        """What a call holds of the order of length², in float32; 0 where memory is linear."""
        return 0


@final
@dataclass(frozen=True)
class Cost:
    """The cost of one call for one batch row, all heads together.

    pairs: the pairs that look. computed: the pairs in the parts of the plan, allowed or not.
    dense_pairs: heads · L · S. flops, dense_flops: the arithmetic for ``pairs`` and for
    ``dense_pairs``. bytes: what is read and written at least. steps: how many of its operations
    must wait for each other. computed_flops: the arithmetic that is made, for ``computed`` and
    for whatever else a mechanism computes beyond its formula. projection_flops: of a layer's
    projections, which are not in the others.
    """

    pairs: int
    computed: int
    dense_pairs: int
    flops: int
    dense_flops: int
    bytes: int
    steps: int
    computed_flops: int
    projection_flops: int = 0

    @property
    def multiplications(self) -> int:
        """flops / 2: each comes with an addition."""
        return self.flops // 2

    @property
    def projections(self) -> int:
        """projection_flops / 2."""
        return self.projection_flops // 2

    @property
    def share(self) -> float:
        """pairs / dense_pairs; 0 where there is nothing to look at."""
        return self.pairs / self.dense_pairs if self.dense_pairs else 0.0

    def __str__(self) -> str:
        step = "step" if self.steps == 1 else "steps"
        return "\n".join(
            [
                f"{self.pairs:,} pairs, {self.share:.3%} of {self.dense_pairs:,}; "
                f"{self.computed:,} computed",
                f"{_scaled(self.flops)}FLOP; dense attention: {_scaled(self.dense_flops)}FLOP",
                f"{_scaled(self.bytes)}B read and written; {self.steps:,} sequential {step}",
            ]
        )


def cost(
    what: Pattern | Countable,
    length: int | None = None,
    key_length: int | None = None,
    *,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    value_dim: int | None = None,
    dtype: torch.dtype = torch.float32,
    backward: bool = False,
) -> Cost:
    """flops = pairs · 2·(E + Ev), and with ``backward`` pairs · 2·(3E + 2Ev) more.

    That is the cost of exact attention under a pattern; ``what`` may also be a mechanism or a
    layer, whose multiplications are those of its own formula.

    E = head_dim, Ev = value_dim (E when omitted); a multiply-add counts as 2. Forward, a pair
    takes part in two products: q·k (E) and weight·v (Ev). Backward, in five: q·k again (E), the
    gradient of the weight dO·v (Ev), dV += weight·dO (Ev), dQ += dScore·k (E) and
    dK += dScore·q (E). For Ev = E that is 2.5 times the forward pass. Exponentials, scale and
    merging are not counted: they do not grow with E.

    bytes: each tensor once, as if whatever is needed again were still at hand. Forward reads q,
    k, v and writes the output and the log-sum-exp; backward reads these five and the output's
    gradient and writes three gradients. q, k, v and the output are of ``dtype``, the log-sum-exp
    of float32 or wider. Keys and values have kv_heads heads, as many as queries when omitted.
    Mechanisms and layers read their parameters too, and keep no log-sum-exp.

    steps = 1: a query waits for no other query's result, whatever the length. Sums over keys
    count as one step, as in Vaswani et al. 2017, table 1. A mechanism that reads tokens or chunks
    one after another has as many.

    length, key_length, tokens: one sequence, as for ``plan``. heads: 1, and head_dim: 64, when
    omitted, or what a mechanism or layer was made for. A pattern that differs per head is counted
    head by head. Raises InvalidArgument for sizes below 1, a dtype that is not floating point, a
    pattern that differs per batch row, sizes that a mechanism was not made for, and what ``plan``
    refuses; NotSupported for the backward pass of mechanisms that are not exact attention.
    """
    if not dtype.is_floating_point:
        raise InvalidArgument(f"dtype={dtype}: attention needs a floating-point type")
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "value_dim": value_dim}
    if isinstance(what, Pattern):
        q, k = described(what, length, key_length, q_tokens, k_tokens)
        work = of_pattern(what, Asked(q.length, k.length, **sizes).call, q, k)
    else:
        work = _of_module(what, length, key_length, (q_tokens, k_tokens), sizes)
    if backward and work.backward is None:
        raise NotSupported(f"{type(what).__name__}: only its forward pass is counted")
    return _cost(work, dtype, backward)


def _of_module(
    what: Countable,
    length: int | None,
    key_length: int | None,
    tokens: tuple[Tokens | None, Tokens | None],
    sizes: dict[str, int | None],
) -> Work:
    if not isinstance(what, Countable):
        raise InvalidArgument(
            f"{type(what).__name__} is no Pattern, Mechanism or layer of eyeline: there is no work "
            "to count"
        )
    if length is None or tokens != (None, None):
        raise InvalidArgument("the cost of a mechanism or a layer is counted for a length")
    work = what.work(Asked(length, key_length, **sizes))
    if work is None:
        raise NotSupported(f"{type(what).__name__} does not say what it multiplies: define work")
    return work


def _cost(work: Work, dtype: torch.dtype, backward: bool) -> Cost:
    call = work.call
    dense, products = call.heads * call.length * call.key_length, call.products
    more = 0
    if backward and work.backward is not None:
        products += 3 * call.head_dim + 2 * call.value_dim
        more = work.backward
    extra = work.computed_multiplications - work.computed * call.products
    return Cost(
        pairs=work.pairs,
        computed=work.computed,
        dense_pairs=dense,
        flops=2 * (work.multiplications + more),
        dense_flops=2 * products * dense,
        bytes=_traffic(work, dtype, backward),
        steps=work.steps,
        computed_flops=2 * (work.computed * products + extra),
        projection_flops=2 * work.projections,
    )


def _traffic(work: Work, dtype: torch.dtype, backward: bool) -> int:
    """Bytes read and written."""
    if work.backward is None:
        return dtype.itemsize * work.numbers
    call: CallSizes = work.call
    output = dtype.itemsize * call.heads * call.length * call.value_dim
    lse = wide_dtype(dtype).itemsize * call.heads * call.length
    inputs = dtype.itemsize * work.numbers - output
    forward = inputs + output + lse
    # Read again, with the output's gradient; the inputs' gradients are as large as they are.
    return forward + (forward + output + inputs if backward else 0)


def _scaled(number: int) -> str:
    """Three digits and a prefix: 1.02 G."""
    size, prefix = float(number), ""
    for larger in "kMGTPE":
        if size < 999.5:
            break
        size, prefix = size / 1000, larger
    return f"{size:.3g} {prefix}"
