"""What a call is made of, as far as its cost goes: its sizes, and how many multiplications."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch

from eyeline.errors import InvalidArgument
from eyeline.patterns import Pattern
from eyeline.planning.dense import settled
from eyeline.planning.heads import rules
from eyeline.planning.pairs import pairs
from eyeline.planning.planner import plan
from eyeline.tokens import Tokens, default_tokens


@final
@dataclass(frozen=True)
class Call:
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

    call: Call
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
            _check(name, getattr(self, name), least=0)
        for name in ("heads", "kv_heads", "head_dim", "value_dim"):
            _check(name, getattr(self, name), least=1)

    def known(self, name: str, **own: int | None) -> Asked:
        """With what a mechanism was made for. Raises InvalidArgument if it was not for this."""
        for size, value in own.items():
            asked = getattr(self, size)
            if asked is not None and value is not None and asked != value:
                raise InvalidArgument(f"{name} was made for {size}={value}, not {asked}")
        return replace(self, **{size: x for size, x in own.items() if x is not None})

    def without_heads(self, name: str, width: int) -> Call:
        """A layer from tokens (L, width) to tokens. Raises InvalidArgument if heads are asked."""
        for size in ("key_length", "heads", "kv_heads", "head_dim", "value_dim"):
            if getattr(self, size) is not None:
                raise InvalidArgument(f"{name} has its own width and no heads: {size} says nothing")
        return Call(self.length, self.length, 1, 1, width, width)

    @property
    def call(self) -> Call:
        """Sizes that nobody said: S = L, one head, as many key heads, 64 wide, values as keys."""
        heads = self.heads if self.heads is not None else 1
        head_dim = self.head_dim if self.head_dim is not None else 64
        kv_heads = self.kv_heads if self.kv_heads is not None else heads
        if heads % kv_heads:
            raise InvalidArgument(f"{heads} query heads cannot share {kv_heads} key heads evenly")
        return Call(
            length=self.length,
            key_length=self.key_length if self.key_length is not None else self.length,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            value_dim=self.value_dim if self.value_dim is not None else head_dim,
        )


def of_pattern(
    pattern: Pattern, call: Call, q: Tokens | None = None, k: Tokens | None = None
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


def _check(name: str, size: object, *, least: int) -> None:
    if size is None:
        return
    if isinstance(size, bool) or not isinstance(size, int) or size < least:
        raise InvalidArgument(f"{name}={size!r}: a whole number from {least}")
