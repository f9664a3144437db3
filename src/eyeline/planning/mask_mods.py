"""A pattern as FlexAttention's mask callable for given tokens: from slots to who stands there."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from eyeline.patterns import And, Not, Or, Pattern, PerHead
from eyeline.patterns.algebra import Compound
from eyeline.patterns.base import MaskMod
from eyeline.planning.dense import settled
from eyeline.tokens import NOBODY, Points, Tokens

Lookup = Callable[[Any, Tensor], Points]
Rule = Callable[[Any, Any, Points, Points], Tensor]


def mask_mod_for(pattern: Pattern, q: Tokens, k: Tokens, device: torch.device) -> MaskMod:
    """mask_mod(b, h, i, j) = the query in slot i may look at the key in slot j.

    For slots that stand at 0, 1, 2, … it is the pattern's own ``mask_mod``; at other consecutive
    positions, a shifted one. Else positions and documents are looked up in tensors that the
    callable holds. No length is part of it, so that a compiled kernel serves them all.
    """
    rows = q.batch if q.batch is not None else k.batch
    if rows is None:
        return _of_one(moved(settled(pattern, q, k), device), q, k, device)
    rules = [moved(settled(pattern, q.row(b), k.row(b)), device) for b in range(rows)]
    if all(rule == rules[0] for rule in rules):
        return _looked_up(_rule(rules[0]), q, k, device)
    return _looked_up(_chosen([_rule(rule) for rule in rules], by="batch"), q, k, device)


def moved(pattern: Pattern, device: torch.device) -> Pattern:
    """The same rule with the tensors that it carries on another device."""
    if isinstance(pattern, Compound):
        return pattern.rebuild(tuple(moved(part, device) for part in pattern.parts))
    tensors = {name: x for name, x in vars(pattern).items() if isinstance(x, Tensor)}
    if all(x.device == device for x in tensors.values()):
        return pattern
    there = copy.copy(pattern)
    for name, x in tensors.items():
        object.__setattr__(there, name, x.to(device))
    return there


def _of_one(pattern: Pattern, q: Tokens, k: Tokens, device: torch.device) -> MaskMod:
    mod, starts = pattern.mask_mod(), (_start(q), _start(k))
    if starts == (0, 0):
        return mod
    if starts[0] is None or starts[1] is None:
        return _looked_up(_rule(pattern), q, k, device)
    # Tensors, since a compiled kernel is made anew for another number but not for another entry.
    q_start, k_start = (torch.tensor(start, dtype=torch.int32, device=device) for start in starts)

    def mask_mod(b: Any, h: Any, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return mod(b, h, q_idx + q_start, kv_idx + k_start)

    return mask_mod


def _start(tokens: Tokens) -> int | None:
    """Where the first slot stands if the others follow it one by one, in one document."""
    start = int(tokens.positions[0])
    if tokens.documents is not None or tokens.segments is not None:
        return None
    if start == NOBODY or start + tokens.length >= 1 << 31:
        return None
    ahead = torch.arange(start, start + tokens.length, device=tokens.positions.device)
    return start if torch.equal(tokens.positions, ahead) else None


def _looked_up(rule: Rule, q: Tokens, k: Tokens, device: torch.device) -> MaskMod:
    queries, keys = _lookup(q, device), _lookup(k, device)

    def mask_mod(b: Any, h: Any, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        i, j = queries(b, q_idx), keys(b, kv_idx)
        return rule(b, h, i, j) & (i.position != NOBODY) & (j.position != NOBODY)

    return mask_mod


def _lookup(tokens: Tokens, device: torch.device) -> Lookup:
    position = _owned(tokens.positions, device)
    document, segment = (
        None if column is None else _owned(column, device)
        for column in (tokens.documents, tokens.segments)
    )
    per_row = tokens.batch is not None

    def lookup(b: Any, index: Tensor) -> Points:
        place = (b, index) if per_row else (index,)
        named = (None if column is None else column[place] for column in (document, segment))
        return Points.of(position[place], *named)

    return lookup


def _owned(x: Tensor, device: torch.device) -> Tensor:
    """x on a device, as a tensor that a backward pass may keep."""
    there = x.to(device)
    return there.clone() if there.is_inference() else there


def _rule(pattern: Pattern) -> Rule:
    """The pattern as a function of batch row, head and points, taken apart down to its atoms."""
    if isinstance(pattern, (And, Or)):
        join = torch.logical_and if isinstance(pattern, And) else torch.logical_or
        members = [_rule(part) for part in pattern.parts]
        return lambda b, h, q, k: reduce(join, [member(b, h, q, k) for member in members])
    if isinstance(pattern, Not):
        inner = _rule(pattern.inner)
        return lambda b, h, q, k: ~inner(b, h, q, k)
    if isinstance(pattern, PerHead):
        return _chosen([_rule(part) for part in pattern.parts], by="head")
    if type(pattern).mask_mod is Pattern.mask_mod:
        return lambda b, h, q, k: pattern.allows(q, k)
    # It has a callable of its own, which knows positions only; nobody's is taken out afterwards.
    mod = pattern.mask_mod()
    return lambda b, h, q, k: mod(b, h, q.position.clamp(min=0), k.position.clamp(min=0))


def _chosen(rules: list[Rule], *, by: str) -> Rule:
    """One rule for each batch row or head."""

    def rule(b: Any, h: Any, q: Points, k: Points) -> Tensor:
        place = b if by == "batch" else h
        own = [each(b, h, q, k) & (place == index) for index, each in enumerate(rules)]
        found: Tensor = reduce(torch.logical_or, own)
        return found

    return rule
