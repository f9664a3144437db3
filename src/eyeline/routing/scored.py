"""Scores of all pairs that a pattern allows, a few rows of queries at a time.

What picks keys by their scores reads them so: no more than one sheet of them is ever held, and
keys that no query of a sheet may look at, such as all that come later, are not multiplied.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from eyeline.patterns import Pattern
from eyeline.planning.dense import settled
from eyeline.routing.ranges import mask, rows_of, spans, times_together
from eyeline.tokens import Tokens


class Scored(NamedTuple):
    """Queries (B, H, L, E) and keys (B, Hk, S, E), whose pairs have scores scale · query · key.

    rule: which pairs are allowed.
    """

    query: Tensor
    key: Tensor
    rule: Pattern
    q_tokens: Tokens
    k_tokens: Tokens
    scale: float

    @property
    def shape(self) -> tuple[int, int, int]:
        """B · Hk lanes of keys, the G = H / Hk query heads that share each, and L."""
        (batch, shared), (heads, length) = self.key.shape[:2], self.query.shape[1:3]
        return batch * shared, heads // shared, length


class Sheet(NamedTuple):
    """Scores (m, G, R, C) of R queries and C keys from slot ``first`` on; -inf: not allowed.

    at: which of all results (B · Hk, G, L, …) are those of these queries.
    """

    scores: Tensor
    first: int
    at: tuple[slice, slice, slice]


class _Part(NamedTuple):
    """Heads that follow one rule, over tokens that are the same."""

    lanes: slice
    heads: slice
    rule: Pattern
    q_tokens: Tokens
    k_tokens: Tokens


def sheets(of: Scored) -> Iterator[Sheet]:
    """All allowed scores, in float32 or wider."""
    lanes, group, length = of.shape
    keys = of.key.shape[2]
    if not length or not keys or not lanes:
        return
    query = of.query.reshape(*of.shape, -1)
    key = _wide(of.key).reshape(lanes, keys, -1)
    for part in _parts(of, group):
        yield from _of_part(part, query, key, of.scale)


def _parts(of: Scored, group: int) -> Iterator[_Part]:
    rule, q, k = of.rule, of.q_tokens, of.k_tokens
    batch, shared = of.key.shape[:2]
    if "head" in rule.varies_by:
        for row in range(batch):
            here = settled(rule, q.row(row), k.row(row))
            for head in range(shared * group):
                lane, own = row * shared + head // group, head % group
                lanes, heads = slice(lane, lane + 1), slice(own, own + 1)
                yield _Part(lanes, heads, here.at(row, head), q.row(row), k.row(row))
    elif "batch" in rule.varies_by or q.batch is not None or k.batch is not None:
        for row in range(batch):
            lanes = slice(row * shared, (row + 1) * shared)
            here = settled(rule, q.row(row), k.row(row)).at(row, 0)
            yield _Part(lanes, slice(0, group), here, q.row(row), k.row(row))
    else:
        yield _Part(slice(0, batch * shared), slice(0, group), settled(rule, q, k), q, k)


def _of_part(part: _Part, query: Tensor, key: Tensor, scale: float) -> Iterator[Sheet]:
    group, keys = part.heads.stop - part.heads.start, key.shape[1]
    rows = min(rows_of(group * keys), query.shape[2])
    step = times_together(group * rows * keys)
    for queries, span in spans(part.rule, part.q_tokens, part.k_tokens, rows):
        unsure = slice(span.sure, span.unsure)
        seen = mask(part.rule, part.q_tokens, part.k_tokens, queries, unsure, key.device)
        for first in range(part.lanes.start, part.lanes.stop, step):
            at = slice(first, min(first + step, part.lanes.stop)), part.heads, queries
            asking = (_wide(query[at]) * scale).flatten(1, 2)
            scores = asking @ key[at[0], span.start : span.stop].mT
            scores = scores.unflatten(1, (group, -1))
            if seen.numel():
                cut = slice(span.sure - span.start, span.unsure - span.start)
                scores[..., cut].masked_fill_(~seen, -torch.inf)
            yield Sheet(scores, span.start, at)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
