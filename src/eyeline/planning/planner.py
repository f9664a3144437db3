"""plan: which parts of the (L, S) rectangle must be computed, in time linear in what is there."""

from __future__ import annotations

import dataclasses
from operator import attrgetter

import torch

from eyeline.budgets import at_once, budgets
from eyeline.checks import check_size
from eyeline.errors import InvalidArgument
from eyeline.memory import remembered
from eyeline.patterns import Pattern
from eyeline.planning.dense import check_memory, described, on_host, settled
from eyeline.planning.layout import group, rectangles
from eyeline.planning.orders import arrange
from eyeline.planning.palette import palette
from eyeline.planning.parts import Part, Plan, Reordered, Run
from eyeline.planning.peeling import Peeled, Rule, pattern_of, peel
from eyeline.planning.refine import refine
from eyeline.tokens import Tokens

TILE = 64
LARGEST_TILE = 512


def plan(
    pattern: Pattern,
    length: int | None = None,
    key_length: int | None = None,
    *,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
    tile: int = TILE,
) -> Plan:
    """The parts of ``pattern`` for one sequence and one head.

    length, key_length: L and S (S = L when omitted), or explicit tokens of one sequence.
    tile: the smallest tile. Larger ones are chosen where most of the area is fully allowed.

    Raises InvalidArgument for tokens of several rows and patterns that differ per batch row or
    head: ask for one of them (``tokens.row(b)``, ``pattern.at(b, h)``).
    """
    check_size("tile", tile)
    q_tokens, k_tokens = one_sequence(pattern, length, key_length, q_tokens, k_tokens)
    return planned(pattern, q_tokens, k_tokens, tile)


def one_sequence(
    pattern: Pattern,
    length: int | None,
    key_length: int | None,
    q_tokens: Tokens | None,
    k_tokens: Tokens | None,
) -> tuple[Tokens, Tokens]:
    """The tokens of one sequence that a call describes, for a pattern that holds everywhere."""
    q_tokens, k_tokens = described(pattern, length, key_length, q_tokens, k_tokens)
    if q_tokens.batch is not None or k_tokens.batch is not None:
        raise InvalidArgument("a plan is for one sequence: choose one with tokens.row(b)")
    varies = pattern.varies_by & {"batch", "head"}
    if varies:
        raise InvalidArgument(
            f"{pattern} differs per {' and '.join(sorted(varies))}: "
            "choose one with pattern.at(batch, head)"
        )
    return q_tokens, k_tokens


@remembered(64, unless=attrgetter("bound"))
@on_host
def planned(pattern: Pattern, q_tokens: Tokens, k_tokens: Tokens, tile: int = TILE) -> Plan:
    """``plan`` for tokens that were checked, remembered by pattern and tokens."""
    check_memory(q_tokens.length, k_tokens.length)
    return _made(settled(pattern, q_tokens, k_tokens), q_tokens, k_tokens, tile)


def _made(rule: Rule, q_tokens: Tokens, k_tokens: Tokens, tile: int) -> Plan:
    """The cheaper plan: in the order of the sequence, or with atoms in orders of their own."""
    pattern = pattern_of(rule)
    if not q_tokens.length or not k_tokens.length:
        return Plan(pattern, pattern, q_tokens, k_tokens, tile, ())
    peeled = peel(pattern, q_tokens, k_tokens)
    taken = None if peeled is None else _taken_apart(pattern, peeled, q_tokens, k_tokens, tile)
    if peeled is None or taken is None:
        return _in_order(pattern, q_tokens, k_tokens, tile)
    # The pattern's own plan in this order may hold every tile there is. Around it lies a simpler
    # one that costs no less than it and is looked at quickly.
    around = _touched(peeled.around, q_tokens, k_tokens, tile)
    if taken.cost < around:
        return dataclasses.replace(taken, rejected=around)
    chosen = _in_order(pattern, q_tokens, k_tokens, tile)
    return dataclasses.replace(chosen, rejected=taken.cost)


def _touched(rule: Rule, q_tokens: Tokens, k_tokens: Tokens, tile: int) -> int:
    """How many pairs lie in the tiles that a rule touches."""
    if rule is True:
        return q_tokens.length * k_tokens.length
    tiling = refine(pattern_of(rule), q_tokens, k_tokens, tile=tile, largest=LARGEST_TILE)
    return tiling.tile**2 * (int((tiling.full[:, 2] ** 2).sum()) + len(tiling.partial))


def _taken_apart(
    pattern: Pattern, peeled: Peeled, q_tokens: Tokens, k_tokens: Tokens, tile: int
) -> Plan | None:
    arranged = arrange(peeled, q_tokens, k_tokens, tile)
    if arranged is None:
        return None
    parts: list[Part] = []
    for rule, q_order, k_order, q, k, edge, modulus in arranged:
        inner = _in_order(rule, q, k, edge, modulus)
        if inner.parts:
            parts.append(Reordered(q_order, k_order, inner))
    rest = _made(peeled.without, q_tokens, k_tokens, tile)
    return dataclasses.replace(rest, pattern=pattern, parts=(*parts, *rest.parts))


def _in_order(rule: Rule, q_tokens: Tokens, k_tokens: Tokens, tile: int, modulus: int = 1) -> Plan:
    pattern = pattern_of(rule)
    queries, keys = q_tokens.length, k_tokens.length
    if not queries or not keys:
        return Plan(pattern, pattern, q_tokens, k_tokens, tile, ())
    tiling = refine(
        pattern, q_tokens, k_tokens, tile=tile, largest=max(tile, LARGEST_TILE), modulus=modulus
    )
    if not len(tiling.full) and not len(tiling.partial):
        return Plan(pattern, pattern, q_tokens, k_tokens, tiling.tile, ())
    masks = palette(pattern, q_tokens, k_tokens, tiling)
    runs, others = group(rectangles(tiling, masks, queries, keys))
    draft = Plan(pattern, pattern, q_tokens, k_tokens, tiling.tile, (*runs, *others))
    return dataclasses.replace(draft, parts=tuple(_with_mask(draft, part) for part in draft.parts))


def _with_mask(draft: Plan, part: Part) -> Part:
    if not isinstance(part, Run) or part.mask is None:
        return part
    mask = torch.empty(part.rows, part.columns, dtype=torch.bool)
    whole = True
    step = at_once(part.columns, budgets.evaluated)
    for first in range(0, part.rows, step):
        rows = mask[first : first + step]
        rows.copy_(draft.mask(part.q0 + first, len(rows), part.k0, part.columns))
        whole = whole and bool(rows.all())
    return dataclasses.replace(part, mask=None if whole else mask)
