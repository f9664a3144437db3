"""What attention under a pattern costs: exact counts, from the pairs that look."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from eyeline.errors import InvalidArgument
from eyeline.patterns import Pattern
from eyeline.planning.dense import described, settled
from eyeline.planning.heads import rules
from eyeline.planning.pairs import pairs
from eyeline.planning.planner import plan
from eyeline.tokens import Tokens


@final
@dataclass(frozen=True)
class Cost:
    """The cost of one call for one batch row, all heads together.

    pairs: the pairs that look. computed: the pairs in the parts of the plan, allowed or not.
    dense_pairs: heads · L · S. flops, dense_flops: the arithmetic for ``pairs`` and for
    ``dense_pairs``. bytes: what is read and written at least. steps: how many of its operations
    must wait for each other.
    """

    pairs: int
    computed: int
    dense_pairs: int
    flops: int
    dense_flops: int
    bytes: int
    steps: int

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
    pattern: Pattern,
    length: int | None = None,
    key_length: int | None = None,
    *,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
    heads: int = 1,
    head_dim: int = 64,
    value_dim: int | None = None,
    dtype: torch.dtype = torch.float32,
    backward: bool = False,
) -> Cost:
    """flops = pairs · 2·(E + Ev), and with ``backward`` pairs · 2·(3E + 2Ev) more.

    E = head_dim, Ev = value_dim (E when omitted); a multiply-add counts as 2. Forward, a pair
    takes part in two products: q·k (E) and weight·v (Ev). Backward, in five: q·k again (E), the
    gradient of the weight dO·v (Ev), dV += weight·dO (Ev), dQ += dScore·k (E) and
    dK += dScore·q (E). For Ev = E that is 2.5 times the forward pass. Exponentials, scale and
    merging are not counted: they do not grow with E.

    bytes: each tensor once, as if whatever is needed again were still at hand. Forward reads q,
    k, v and writes the output and the log-sum-exp; backward reads these five and the output's
    gradient and writes three gradients. q, k, v and the output are of ``dtype``, the log-sum-exp
    of float32 or wider. Keys and values have as many heads as queries.

    steps = 1: a query waits for no other query's result, whatever the length. Sums over keys
    count as one step, as in Vaswani et al. 2017, table 1.

    length, key_length, tokens: one sequence, as for ``plan``. A pattern that differs per head is
    counted head by head. Raises InvalidArgument for sizes below 1, a dtype that is not floating
    point, a pattern that differs per batch row, and what ``plan`` refuses.
    """
    value_dim = value_dim if value_dim is not None else head_dim
    _check(head_dim, value_dim, dtype)
    q, k = described(pattern, length, key_length, q_tokens, k_tokens)
    looking = computed = 0
    for rule, count in rules(settled(pattern, q, k), heads):
        looking += count * pairs(rule, q_tokens=q, k_tokens=k)
        computed += count * plan(rule, q_tokens=q, k_tokens=k).area
    dense = heads * q.length * k.length
    products = head_dim + value_dim
    if backward:
        products += 3 * head_dim + 2 * value_dim
    return Cost(
        pairs=looking,
        computed=computed,
        dense_pairs=dense,
        flops=2 * products * looking,
        dense_flops=2 * products * dense,
        bytes=heads * _traffic(q.length, k.length, head_dim, value_dim, dtype, backward),
        steps=1,
    )


def _check(head_dim: int, value_dim: int, dtype: torch.dtype) -> None:
    for name, size in (("head_dim", head_dim), ("value_dim", value_dim)):
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise InvalidArgument(f"{name}={size!r}: a whole number from 1")
    if not dtype.is_floating_point:
        raise InvalidArgument(f"dtype={dtype}: attention needs a floating-point type")


def _traffic(
    queries: int, keys: int, head_dim: int, value_dim: int, dtype: torch.dtype, backward: bool
) -> int:
    """Bytes read and written for one head."""
    inputs = dtype.itemsize * (queries * head_dim + keys * (head_dim + value_dim))
    output = dtype.itemsize * queries * value_dim
    lse = torch.promote_types(dtype, torch.float32).itemsize * queries
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
