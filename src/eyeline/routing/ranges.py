"""Which keys some queries may look at, as ranges: what need not be multiplied, or asked for.

Patterns are asked about ranges of keys, and pair by pair only where a range is allowed in part.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from eyeline.patterns import EMPTY, FULL, Pattern
from eyeline.planning.refine import Level, pyramid, verdicts
from eyeline.tokens import Points, Tokens

# So many pairs are held at once, but rather more than fewer rows than this.
_PAIRS, _FEWEST_ROWS = 1 << 20, 16
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
    return max(_PAIRS // max(width, 1), _FEWEST_ROWS)


def times_together(pairs: int) -> int:
    """How many times so many pairs are made together."""
    return max(_PAIRS // max(pairs, 1), 1)


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
    ask = Points(*(x.to(device).unsqueeze(1) for x in rows))
    return rule.sees(ask, Points(*(x.to(device) for x in columns))).expand(shape)


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
