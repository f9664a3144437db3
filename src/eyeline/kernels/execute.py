"""What is computed for the parts of a plan, one after the other, forward and backward.

Each part gives an output and a log-sum-exp for its queries; they merge exactly (``merge``), and
the backward pass needs no merge.

Tensors here are those of one batch row: query (H, L, E), key (Hk, S, E), value (Hk, S, Ev).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from eyeline.budgets import at_once, budgets
from eyeline.kernels import flash
from eyeline.kernels.merge import shares_of_two
from eyeline.kernels.pieces import Footprint, Piece, add, pick, pieces, take_in
from eyeline.kernels.scoring import Scoring
from eyeline.planning import Block, Plan, Reordered
from eyeline.tokens.ordering import Ordering


class Inputs(NamedTuple):
    """What attention is computed from. scoring: what is done to its scores, if anything."""

    query: Tensor
    key: Tensor
    value: Tensor
    scoring: Scoring | None = None

    def of_heads(self, heads: slice, key_heads: slice) -> Inputs:
        """Those of some query heads and their key heads."""
        scoring = None if self.scoring is None else self.scoring.of_heads(heads)
        return Inputs(self.query[heads], self.key[key_heads], self.value[key_heads], scoring)

    def in_order(self, q_order: Ordering | None, k_order: Ordering | None) -> Inputs:
        """Queries and keys in other orders."""
        scoring = None if self.scoring is None else self.scoring.in_order(q_order, k_order)
        key, value = (pick(x, k_order) for x in (self.key, self.value))
        return Inputs(pick(self.query, q_order), key, value, scoring)


class Gradients(NamedTuple):
    """Where gradients are added up."""

    query: Tensor
    key: Tensor
    value: Tensor


class Known(NamedTuple):
    """What the backward pass starts from: the merged results, and the gradients given for them."""

    out: Tensor
    lse: Tensor
    grad: Tensor
    grad_lse: Tensor | None


def forward(
    plan: Plan, inputs: Inputs, out: Tensor, lse: Tensor, scale: float, *, first: bool = True
) -> None:
    """Take every part's result into out (H, L, Ev) and lse (H, L).

    first: whether they hold no result yet, but 0 and -inf.
    """
    touched = bytearray(out.shape[1]) if first else bytearray(b"\1" * out.shape[1])
    for part in plan.parts:
        if isinstance(part, Reordered):
            fresh = touched.find(1) < 0
            _forward_reordered(part, inputs, out, lse, scale, first=fresh)
            touched[:] = b"\1" * len(touched)
        else:
            _forward_block(plan, part, inputs, out, lse, scale, touched)


def backward(plan: Plan, inputs: Inputs, known: Known, grads: Gradients, scale: float) -> None:
    """Add every part's gradients to grads."""
    for part in plan.parts:
        if isinstance(part, Reordered):
            _backward_reordered(part, inputs, known, grads, scale)
        else:
            _backward_block(plan, part, inputs, known, grads, scale)


def _forward_block(
    plan: Plan,
    part: Block,
    inputs: Inputs,
    out: Tensor,
    lse: Tensor,
    scale: float,
    touched: bytearray,
) -> None:
    q, k, v, scoring = inputs
    fused = flash.serves(q, v) and (scoring is None or scoring.is_bias)
    footprint = _footprint(inputs, fused=fused, backward=False)
    for piece in pieces(plan, part, footprint, budgets.piece):
        mask = None if piece.mask is None else piece.mask.to(q.device)
        blocks = (piece.queries(q), piece.keys(k), piece.keys(v))
        steps = None if scoring is None else scoring.at(piece, blocks[0], scale)
        new_out, new_lse = flash.results(blocks, mask, scale, steps=steps, fused=fused)
        first, end = piece.span()
        if touched.find(1, first, end) >= 0:
            _merge(piece, out, lse, new_out.to(out.dtype), new_lse)
        else:
            piece.put_queries(out, new_out)
            piece.put_queries(lse, new_lse)
        touched[first:end] = b"\1" * (end - first)


def _merge(piece: Piece, out: Tensor, lse: Tensor, new_out: Tensor, new_lse: Tensor) -> None:
    """Take one more result for the piece's queries into out and lse. new_out is used up."""
    old_share, new_share, total = shares_of_two(piece.queries(lse), new_lse)
    piece.add_queries(out, new_out.mul_(new_share), share=old_share)
    piece.put_queries(lse, total)


def _backward_block(
    plan: Plan, part: Block, inputs: Inputs, known: Known, grads: Gradients, scale: float
) -> None:
    q, k, v, scoring = inputs
    fused = flash.serves(q, v) and known.grad_lse is None
    fused = fused and (scoring is None or (scoring.is_bias and not scoring.is_trained))
    footprint = _footprint(inputs, fused=fused, backward=True)
    for piece in pieces(plan, part, footprint, budgets.piece):
        mask = None if piece.mask is None else piece.mask.to(q.device)
        blocks = (piece.queries(q), piece.keys(k), piece.keys(v))
        merged = (piece.queries(known.out), piece.queries(known.lse))
        grad_lse = None if known.grad_lse is None else piece.queries(known.grad_lse)
        steps = None if scoring is None else scoring.at(piece, blocks[0], scale)
        given = piece.queries(known.grad), grad_lse
        dq, dk, dv = flash.gradients(given, blocks, merged, mask, scale, steps=steps, fused=fused)
        piece.add_queries(grads.query, dq)
        piece.add_keys(grads.key, dk)
        piece.add_keys(grads.value, dv)


def _footprint(inputs: Inputs, *, fused: bool, backward: bool) -> Footprint:
    """What the products hold at once. The fused operator keeps no scores; the plain one does."""
    q, k, v, scoring = inputs
    size = max(q.element_size(), 4)
    heads, key_heads = q.shape[0], k.shape[0]
    query = heads * (q.shape[2] if backward else v.shape[2]) * size
    key = key_heads * (k.shape[2] + v.shape[2]) * size if backward else 0
    if fused:
        return Footprint(query, key, 0)
    pair = 3 if scoring is None else 5
    square = 2 if scoring is not None and scoring.has_tables else 0
    return Footprint(query, key, pair * heads * size, square * heads * size)


def _forward_reordered(
    part: Reordered, inputs: Inputs, out: Tensor, lse: Tensor, scale: float, *, first: bool
) -> None:
    for heads, key_heads in _few_heads(part, inputs):
        some = inputs.of_heads(heads, key_heads).in_order(part.q_order, part.k_order)
        new_out = out.new_zeros(*some.query.shape[:2], out.shape[2])
        new_lse = lse.new_full(some.query.shape[:2], -torch.inf)
        forward(part.plan, some, new_out, new_lse, scale)
        take_in(part.q_order, (out[heads], lse[heads]), (new_out, new_lse), first=first)


def _backward_reordered(
    part: Reordered, inputs: Inputs, known: Known, grads: Gradients, scale: float
) -> None:
    for heads, key_heads in _few_heads(part, inputs):
        some = inputs.of_heads(heads, key_heads).in_order(part.q_order, part.k_order)
        order = part.q_order
        above = known.grad_lse
        merged = Known(
            pick(known.out[heads], order),
            # exp(score - inf) = 0: where nobody is, no gradient comes from.
            pick(known.lse[heads], order, empty=torch.inf),
            pick(known.grad[heads], order),
            None if above is None else pick(above[heads], order),
        )
        found = Gradients(*(torch.zeros_like(x, dtype=grads.query.dtype) for x in some[:3]))
        backward(part.plan, some, merged, found, scale)
        add(grads.query[heads], part.q_order, found.query)
        add(grads.key[key_heads], part.k_order, found.key)
        add(grads.value[key_heads], part.k_order, found.value)


def _few_heads(part: Reordered, inputs: Inputs) -> Iterator[tuple[slice, slice]]:
    """Query heads and their key heads, so few at a time that their copies stay small."""
    q, k, v, _ = inputs
    groups = q.shape[0] // max(k.shape[0], 1)
    places = part.plan.q_tokens.length * groups + part.plan.k_tokens.length
    each = places * (q.shape[2] + v.shape[2]) * q.element_size()
    count = at_once(each, budgets.ordered)
    for first in range(0, k.shape[0], count):
        end = min(first + count, k.shape[0])
        yield slice(first * groups, end * groups), slice(first, end)
