"""Which batch rows and heads share a plan, and in which order they are computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from torch import Tensor

from eyeline.kernels.execute import Inputs
from eyeline.kernels.request import Request
from eyeline.kernels.scoring import Scoring
from eyeline.kernels.steps import Pairing
from eyeline.planning.peeling import common
from eyeline.planning.planner import planned
from eyeline.planning.plans import Plan
from eyeline.tokens import Tokens

# What sums of half types take in float32 at once, in bytes, of each tensor.
_SUMS = 8 << 20


@final
@dataclass(frozen=True)
class Sheet:
    """One batch row and some neighbouring heads that share a plan.

    first: whether no sheet before this one is about the same row and heads.
    """

    row: int
    heads: slice
    key_heads: slice
    plan: Plan
    first: bool = True

    def inputs(self, query: Tensor, key: Tensor, value: Tensor, pairing: Pairing) -> Inputs:
        """What the plan is executed on."""
        tokens = self.plan.q_tokens, self.plan.k_tokens
        given = Scoring.of(pairing, *tokens, self.row) if pairing else None
        every = Inputs(query[self.row], key[self.row], value[self.row], given)
        return every.of_heads(self.heads, self.key_heads)


@final
@dataclass(frozen=True)
class Strip:
    """Sheets of one batch row whose heads, and key heads, are in no other strip.

    Their results are added up in float32: of half types, for so few heads at a time that what is
    wider than the result stays small.
    """

    row: int
    heads: slice
    key_heads: slice
    sheets: tuple[Sheet, ...]


def sheets(request: Request) -> Iterator[Sheet]:
    """All sheets of the request."""
    for strip in strips(request):
        yield from strip.sheets


def strips(request: Request) -> Iterator[Strip]:
    """What is computed one after the other: rows and heads that share plans."""
    pattern, q, k = request.pattern, request.q_tokens.host, request.k_tokens.host
    for row in range(request.query.shape[0]):
        tokens = q.row(row), k.row(row)
        if "head" in pattern.varies_by:
            yield from _head_by_head(request, row, tokens)
            continue
        plan = planned(pattern.at(row, 0), *tokens)
        for heads in _few_heads(request):
            yield _strip(request, row, heads, [_sheet(request, row, heads, plan)])


def _few_heads(request: Request) -> Iterator[slice]:
    """Query heads, all that share a key head together."""
    heads = request.query.shape[1]
    if request.query.dtype.itemsize >= 4:
        yield slice(0, heads)
        return
    longest = max(request.query.numel(), request.key.numel(), request.value.numel(), 1)
    share = heads * request.query.shape[0] * _SUMS // (4 * longest)
    count = max(share // request.groups, 1) * request.groups
    for first in range(0, heads, count):
        yield slice(first, min(first + count, heads))


def _head_by_head(request: Request, row: int, tokens: tuple[Tokens, Tokens]) -> Iterator[Strip]:
    """What all heads look at is computed for all at once, the rest for each."""
    heads, shared = request.query.shape[1], common(request.pattern)
    every, together, alone = slice(0, heads), [], isinstance(shared, bool)
    if not isinstance(shared, bool):
        together.append(_sheet(request, row, every, planned(shared.at(row, 0), *tokens)))
    own = []
    for head in range(heads):
        rule = request.pattern.at(row, head)
        rule = rule if isinstance(shared, bool) else rule & ~shared.at(row, head)
        plan = planned(rule, *tokens)
        own.append(_sheet(request, row, slice(head, head + 1), plan, first=alone))
    if together:
        yield _strip(request, row, every, together + own)
        return
    for first in range(0, heads, request.groups):
        some = slice(first, first + request.groups)
        yield _strip(request, row, some, own[some])


def _strip(request: Request, row: int, heads: slice, sheets: list[Sheet]) -> Strip:
    return Strip(row, heads, _key_heads(request, heads), tuple(sheets))


def _sheet(request: Request, row: int, heads: slice, plan: Plan, *, first: bool = True) -> Sheet:
    return Sheet(row, heads, _key_heads(request, heads), plan, first)


def _key_heads(request: Request, heads: slice) -> slice:
    return slice(heads.start // request.groups, -(-heads.stop // request.groups))
