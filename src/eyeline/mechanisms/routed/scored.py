"""Scores of all pairs that a pattern allows, a few rows of queries at a time.

What picks keys by their scores reads them so: no more than one sheet of them is ever held, and
keys that no query of a sheet may look at, such as all that come later, are not multiplied.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from eyeline.budgets import at_once, budgets
from eyeline.checks import widened
from eyeline.patterns import EMPTY, FULL, Pattern
from eyeline.planning.dense import settled
from eyeline.planning.refine import Level, pyramid, verdicts
from eyeline.tokens import Tokens

# Which keys some queries may look at, as ranges: what need not be multiplied, or asked for.
#
# Patterns are asked about ranges of keys, and pair by pair only where a range is allowed in part.


# Rather more pairs are held at once than fewer rows than this.
_FEWEST_ROWS = 16
# Keys are left out, or found to be allowed to all, in ranges of this many.
_RANGE = 128


class Span(NamedTuple):
    """Keys start … stop - 1 hold all that some queries may look at.

    Between ``sure`` and ``unsure`` each pair must be asked for; outside all are allowed.
    """

    start: int
    stop: int
    sure: int
    unsure: int


def rows_of(width: int) -> int:
    """How many queries are looked at together, if each has so many pairs."""
    return max(budgets.scored // max(width, 1), _FEWEST_ROWS)


def times_together(pairs: int) -> int:
    """How many times so many pairs are made together."""
    return at_once(pairs, budgets.scored)


def spans(
    rule: Pattern, q_tokens: Tokens, k_tokens: Tokens, rows: int
) -> Iterator[tuple[slice, Span]]:
    """What each ``rows`` queries may look at; one sequence, with somebody to ask and to see."""
    above = pyramid(q_tokens.host, rows, 1, 1)[0]
    below = pyramid(k_tokens.host, _RANGE, 1, 1)[0]
    for number in range(len(above)):
        queries = slice(number * rows, min((number + 1) * rows, q_tokens.length))
        found = _span(rule, above, below, number, k_tokens.length)
        if found is not None:
            yield queries, found


def allowed(rule: Pattern, q_tokens: Tokens, k_tokens: Tokens) -> Tensor:
    """How many keys each query may look at, int64 (L,); one sequence and head.

    Pairs are asked for only where ranges of them differ.
    """
    counts = torch.zeros(q_tokens.length, dtype=torch.int64)
    if not q_tokens.length or not k_tokens.length:
        return counts
    q, k = q_tokens.host, k_tokens.host
    for queries, span in spans(rule, q, k, rows_of(k.length)):
        counts[queries] = span.stop - span.start - (span.unsure - span.sure)
        asked = mask(rule, q, k, queries, slice(span.sure, span.unsure), torch.device("cpu"))
        counts[queries] += asked.sum(1)
    return counts


def multiplied(rule: Pattern, q_tokens: Tokens, k_tokens: Tokens) -> int:
    """How many scores ``sheets`` makes for one head alone."""
    if not q_tokens.length or not k_tokens.length:
        return 0
    each = spans(rule, q_tokens, k_tokens, rows_of(k_tokens.length))
    return sum((x.stop - x.start) * (span.stop - span.start) for x, span in each)


def mask(
    rule: Pattern, q: Tokens, k: Tokens, queries: slice, keys: slice, device: torch.device
) -> Tensor:
    """Who may look at whom, bool (R, C)."""
    rows, columns = q.at(queries), k.at(keys)
    shape = len(rows.position), len(columns.position)
    if not shape[1]:
        return torch.empty(shape, dtype=torch.bool, device=device)
    return rule.sees(rows.to(device).unsqueeze(1), columns.to(device)).expand(shape)


def _span(rule: Pattern, above: Level, below: Level, number: int, keys: int) -> Span | None:
    """What the queries of one tile may look at; None if nobody."""
    ranges = torch.arange(len(below))
    tiles = torch.stack([torch.full_like(ranges, number), ranges], 1)
    verdict = verdicts(rule, above, below, tiles)
    start, stop = _ends(verdict != EMPTY)
    if start == stop:
        return None
    sure, unsure = _ends(verdict[start:stop] != FULL)
    edges = (start, stop, start + sure, start + unsure)
    return Span(*(min(x * _RANGE, keys) for x in edges))


def _ends(marked: Tensor) -> tuple[int, int]:
    """The least range that holds all that are marked; empty if none is."""
    places = marked.nonzero()[:, 0]
    return (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)


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
    key = widened(of.key).reshape(lanes, keys, -1)
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
            asking = (widened(query[at]) * scale).flatten(1, 2)
            scores = asking @ key[at[0], span.start : span.stop].mT
            scores = scores.unflatten(1, (group, -1))
            if seen.numel():
                cut = slice(span.sure - span.start, span.unsure - span.start)
                scores[..., cut].masked_fill_(~seen, -torch.inf)
            yield Sheet(scores, span.start, at)
