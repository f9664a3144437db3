"""Exact attention over the parts of a plan: work for the pairs that look, memory linear in length.

The front door and the derivative. Which batch rows and heads share a plan is in ``sheets``, what
is done with a plan in ``execute``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from eyeline.budgets import budgets
from eyeline.checks import wide_dtype
from eyeline.kernels import scoring
from eyeline.kernels.autograd import only_once
from eyeline.kernels.execute import Gradients, Inputs, Known, backward, forward
from eyeline.kernels.pieces import dense_rows
from eyeline.kernels.product import Pairing
from eyeline.kernels.request import Request
from eyeline.kernels.scoring import Scoring
from eyeline.planning.parts import Plan
from eyeline.planning.peeling import common
from eyeline.planning.planner import planned
from eyeline.scores import Step, Table
from eyeline.tokens import Tokens

# Which batch rows and heads share a plan, and in which order they are computed.


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
    share = heads * request.query.shape[0] * budgets.half_sums // (4 * longest)
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


NAME = "tiles"


def refusal(request: Request) -> str | None:
    """Why tiles cannot serve the request, or None. They serve every exact pattern."""
    if _transformed():
        return "inside torch.func's transforms: the reference has derivatives of every kind"
    return scoring.refusal(request)


def run(request: Request) -> tuple[Tensor, Tensor]:
    """output (B, H, L, Ev) and lse (B, H, L); first derivatives of both."""
    work = work_of(request, scoring.firsts(request))
    tensors = (request.query, request.key, request.value, *scoring.tables(request))
    out, lse = _Tiles.apply(work, *tensors)  # type: ignore[no-untyped-call]
    return out, lse


# Not public in torch. Without it torch.func says itself that it cannot.
_transformed = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)


def first_plan(request: Request) -> Plan:
    """The plan of the first batch row and head."""
    q, k = request.q_tokens.host.row(0), request.k_tokens.host.row(0)
    return planned(request.pattern.at(0, 0), q, k)


@final
@dataclass(frozen=True, eq=False)
class Work:
    """What is done with the tensors of a call. steps: each with the first distance of its table."""

    scale: float
    strips: tuple[Strip, ...]
    steps: tuple[tuple[Step, int], ...]


def work_of(request: Request, firsts: Sequence[int]) -> Work:
    """The work for a request, whose steps have tables that begin at the distances ``firsts``."""
    return Work(
        request.scale, tuple(strips(request)), tuple(zip(request.steps, firsts, strict=True))
    )


class _Tiles(torch.autograd.Function):
    """The parts' products, forward and backward, as one differentiable function."""

    @staticmethod
    def forward(
        ctx: Any, work: Work, query: Tensor, key: Tensor, value: Tensor, *tables: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        out, lse = results(work, query, key, value, tables)
        ctx.save_for_backward(query, key, value, out, lse, *tables)
        ctx.work = work
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
        query, key, value, out, lse, *tables = ctx.saved_tensors
        wanted = ctx.needs_input_grad[4:]
        with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
            tensors = (query, key, value, out, lse)
            found = gradients(ctx.work, *tensors, tables, wanted, grad, grad_lse)
        of = (query, key, value, *tables, grad, grad_lse)
        return None, *only_once("attention by tiles", found, *of)


def results(
    work: Work, query: Tensor, key: Tensor, value: Tensor, tables: Sequence[Tensor | None]
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp, without a derivative."""
    query, key, value = (dense_rows(x) for x in (query, key, value))
    wide = wide_dtype(query)
    # Half types are merged in float32 and rounded once.
    out = value.new_zeros(*query.shape[:3], value.shape[-1])
    lse = query.new_full(query.shape[:3], -torch.inf, dtype=wide)
    pairing = paired(work.steps, tables, (None,) * len(work.steps))
    for strip in work.strips:
        with _summed(wide, out[strip.row, strip.heads]) as (sums,):
            for sheet in strip.sheets:
                of = _within(sheet.heads, strip.heads)
                inputs = sheet.inputs(query, key, value, pairing)
                found = sums[of], lse[sheet.row, sheet.heads]
                forward(sheet.plan, inputs, *found, work.scale, first=sheet.first)
    return out, lse


def gradients(
    work: Work,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    tables: Sequence[Tensor | None],
    wanted: Sequence[bool],
    grad: Tensor | None,
    grad_lse: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """Those of query, key, value, and of each table that is wanted, from what ``results`` gave."""
    query, key, value = (dense_rows(x) for x in (query, key, value))
    wide = wide_dtype(query)
    grads = tuple(torch.zeros_like(x) for x in (query, key, value))
    slopes = tuple(
        torch.zeros_like(table) if table is not None and wants else None
        for table, wants in zip(tables, wanted, strict=True)
    )
    pairing = paired(work.steps, tables, slopes)
    grad = dense_rows(grad) if grad is not None else torch.zeros_like(out)
    # exp(score - inf) = 0: an empty row, whose score - lse would be inf - inf, adds nothing.
    lse = lse.masked_fill(lse == -torch.inf, torch.inf)
    if grad_lse is not None:
        grad_lse = grad_lse.masked_fill(lse == torch.inf, 0.0)
    for strip in work.strips:
        places = (strip.heads, strip.key_heads, strip.key_heads)
        whole = (x[strip.row, heads] for x, heads in zip(grads, places, strict=True))
        with _summed(wide, *whole) as sums:
            for sheet in strip.sheets:
                known = _known(sheet, out, lse, grad, grad_lse)
                inputs = sheet.inputs(query, key, value, pairing)
                of = _within(sheet.heads, strip.heads)
                keys = _within(sheet.key_heads, strip.key_heads)
                found = Gradients(sums[0][of], sums[1][keys], sums[2][keys])
                backward(sheet.plan, inputs, known, found, work.scale)
    return (*grads, *slopes)


def _known(sheet: Sheet, out: Tensor, lse: Tensor, grad: Tensor, grad_lse: Tensor | None) -> Known:
    of = sheet.row, sheet.heads
    return Known(out[of], lse[of], grad[of], None if grad_lse is None else grad_lse[of])


@contextmanager
def _summed(wide: torch.dtype, *whole: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Where to add up what belongs into ``whole``: there, or in wider tensors beside it."""
    sums = tuple(x if x.dtype == wide else torch.zeros_like(x, dtype=wide) for x in whole)
    yield sums
    for x, total in zip(whole, sums, strict=True):
        if x is not total:
            x.copy_(total)


def _within(heads: slice, strip: slice) -> slice:
    return slice(heads.start - strip.start, heads.stop - strip.start)


def paired(
    steps: tuple[tuple[Step, int], ...],
    tables: Sequence[Tensor | None],
    slopes: Sequence[Tensor | None],
) -> Pairing:
    """Steps with the first distances of their tables, the tables, and where slopes are added up."""
    return tuple(
        (step, None if table is None else Table(table, first, slope))
        for (step, first), table, slope in zip(steps, tables, slopes, strict=True)
    )
