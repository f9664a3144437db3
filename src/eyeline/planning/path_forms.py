"""Longest paths of bands, chunks and grids in closed form, each with its proof.

dist(i, j) is the number of layers after which token i has heard of j, see ``max_path_length``. A
form answers max dist over all pairs for which it is finite, or None where it does not apply.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise, product
from typing import final

import torch

from eyeline.patterns import (
    And,
    Causal,
    Chunks,
    Dilated,
    DocumentsApart,
    FixedColumns,
    Full,
    Global,
    Grid,
    Or,
    Pattern,
    Sinks,
    Strided,
    Window,
)

# A pattern as a union of terms: a band of the diagonal, thinned by a step, and what else.


ENDLESS = 1 << 62
# An expression of more terms than this is none that a closed form is known for.
_MOST_TERMS = 64


@final
@dataclass(frozen=True)
class Term:
    """allows(i, j) = step divides i - j, -right <= i - j <= left, and all ``others`` allow it."""

    step: int = 1
    left: int = ENDLESS
    right: int = ENDLESS
    others: tuple[Pattern, ...] = ()

    def within(self, other: Term) -> bool:
        """Whether every pair of this term is surely one of the other's."""
        narrower = self.left <= other.left and self.right <= other.right
        thinner = self.step % other.step == 0 and all(x in self.others for x in other.others)
        return narrower and thinner

    def beside(self, other: Term) -> bool:
        """Whether two terms differ only in the width of their bands."""
        alike = self.step == other.step and len(self.others) == len(other.others)
        return alike and all(x in self.others for x in other.others)

    def widened(self, other: Term) -> Term:
        """The union of a term and one beside it."""
        left, right = max(self.left, other.left), max(self.right, other.right)
        return Term(self.step, left, right, self.others)

    def joined(self, other: Term) -> Term:
        """Both terms at once."""
        more = tuple(x for x in other.others if x not in self.others)
        return Term(
            math.lcm(self.step, other.step),
            min(self.left, other.left),
            min(self.right, other.right),
            self.others + more,
        )


def terms(pattern: Pattern) -> list[Term] | None:
    """The terms whose union a pattern is, in one document; None if they are many.

    Whether a token looks at itself is left open: nothing is heard that way.
    Bands that differ only in width are one: all of them hold the diagonal. No term lies within
    another.
    """
    found = _terms(pattern)
    if found is None:
        return None
    kept: list[Term] = []
    for term in found:
        for other in [other for other in kept if term.beside(other)]:
            kept.remove(other)
            term = term.widened(other)
        if not any(term.within(other) for other in kept):
            kept = [other for other in kept if not other.within(term)] + [term]
    return sorted(kept, key=lambda term: (len(term.others), term.step))


def _terms(pattern: Pattern) -> list[Term] | None:
    if not isinstance(pattern, (And, Or)):
        return [_atom(pattern)]
    found = [Term()] if isinstance(pattern, And) else []
    for member in pattern.members:
        more = _terms(member)
        if more is None:
            return None
        if isinstance(pattern, And):
            found = [one.joined(other) for one, other in product(found, more)]
        else:
            found = found + more
        if len(found) > _MOST_TERMS:
            return None
    return found


def _atom(pattern: Pattern) -> Term:
    if isinstance(pattern, (Full, DocumentsApart)) or pattern == ~Window(0, 0):
        return Term()
    if isinstance(pattern, Causal):
        return Term(right=0)
    if isinstance(pattern, Window):
        return Term(left=_width(pattern.left), right=_width(pattern.right))
    if isinstance(pattern, Strided):
        return Term(pattern.stride)
    if isinstance(pattern, Dilated):
        step = pattern.step
        return Term(step, _width(pattern.left, step), _width(pattern.right, step))
    return Term(others=(pattern,))


def _width(neighbours: int | None, step: int = 1) -> int:
    return ENDLESS if neighbours is None else neighbours * step


Form = Callable[[list[Term], int], int | None]


def formula(pattern: Pattern, length: int, forms: tuple[Form, ...]) -> int | None:
    """The answer of the first form that fits, for one document of consecutive positions."""
    rule = terms(pattern)
    if rule is None:
        return None
    # Who looks only at themselves hears nothing.
    rule = [term for term in rule if max(term.left, term.right) >= term.step] or rule[:1]
    answers = (form(rule, length) for form in forms)
    return next((answer for answer in answers if answer is not None), None)


def _hops(distance: int, *widths: int) -> int:
    """Hops over ``distance`` by the widest hop each way: ⌈distance / width⌉; ways of 0 are shut."""
    narrowest = min((width for width in widths if width > 0), default=0)
    return -(-distance // narrowest) if narrowest else 0


def _band(rule: list[Term], n: int) -> int | None:
    # Tokens a step apart are a chain of m = ⌈n / step⌉. A hop moves at most `left` down it or
    # `right` up it, and hops of that width never leave the stretch between the ends.
    if len(rule) != 1 or rule[0].others:
        return None
    (term,) = rule
    ends = -(-n // term.step) - 1
    return _hops(ends, *(min(width // term.step, ends) for width in (term.left, term.right)))


def _chunks(rule: list[Term], n: int) -> int | None:
    # Chunks are a chain like a band's; within one chunk, one layer. Causal shuts the way up.
    if len(rule) != 1 or not _is(rule[0], Chunks) or _sides(rule[0], n) is None:
        return None
    chunks = rule[0].others[0]
    assert isinstance(chunks, Chunks)
    ends = -(-n // chunks.size) - 1
    left = ends if chunks.left is None else min(chunks.left, ends)
    right = ends if chunks.right is None else min(chunks.right, ends)
    across = _hops(ends, left, right if _sides(rule[0], n) == "both" else 0)
    return max(across, int(min(chunks.size, n) > 1))


def _grid(rule: list[Term], n: int) -> int | None:
    # A king's walk: each hop moves up to `radius` along both sides at once.
    if len(rule) != 1 or not _is(rule[0], Grid) or _sides(rule[0], n) != "both":
        return None
    grid = rule[0].others[0]
    assert isinstance(grid, Grid)
    if grid.height * grid.width != n:
        return None
    return _hops(max(grid.height, grid.width) - 1, grid.radius)


def _stride_and_window(rule: list[Term], n: int) -> int | None:
    # Causal, so hops add up to d = i - j: hops within the window alone, ⌈d / l⌉, or one hop over
    # all whole strides and ⌈(d mod s) / l⌉ within the window. Both grow when d grows by a stride,
    # so the last `stride` distances are enough.
    if len(rule) != 2 or any(term.others or term.right for term in rule):
        return None
    window, strided = rule
    stride, near = min(strided.step, n), min(window.left, n)
    if window.step != 1 or near < 1 or strided.left < (n - 1) // stride * stride:
        return None
    distance = torch.arange(max(n - stride, 0), n)
    alone, rest = -(-distance // near), -(-(distance % stride) // near)
    return int(torch.minimum(alone, 1 + rest).max())


def _summaries(rule: list[Term], n: int) -> int | None:
    # i hears the last column of j's chunk, which hears j. Token `size` needs it to hear 0.
    if len(rule) != 2 or _sides(rule[0], n) is None or _sides(rule[0], n) != _sides(rule[1], n):
        return None
    found = {type(x): x for term in rule for x in term.others if len(term.others) == 1}
    chunks, columns = found.get(Chunks), found.get(FixedColumns)
    if not isinstance(chunks, Chunks) or not isinstance(columns, FixedColumns):
        return None
    if chunks != Chunks(columns.stride):
        return None
    if n > columns.stride > columns.width:
        return 2
    return int(n > 1)


def _stretches(rule: list[Term], n: int) -> int | None:
    # Causal with globals G (or sinks): j is heard at once if i or j is in G, in two layers if one
    # of G lies between them, and else through the window of l alone, within a stretch without G.
    bands = [term for term in rule if not term.others]
    others = [term for term in rule if term.others]
    if not others or len(bands) > 1 or any(term.step > 1 or term.right for term in bands):
        return None
    if any(_sides(x, n) != "past" or not (_is(x, Sinks) or _is(x, Global)) for x in others):
        return None
    near = bands[0].left if bands else 0
    stretches = _without(others, n)
    inside = max((_hops(last - first, near) for first, last in stretches), default=0)
    some = n > 1 and (near > 0 or sum(last - first + 1 for first, last in stretches) < n)
    if len(stretches) > 1:
        distance = stretches[-1][1] - stretches[0][0]
        inside = max(inside, min(2, _hops(distance, near)) if near else 2)
    return max(inside, int(some))


def _without(others: list[Term], n: int) -> list[tuple[int, int]]:
    """First and last token of each stretch that holds no sink and no global token."""
    prefix, listed = 0, set[int]()
    for term in others:
        (atom,) = term.others
        assert isinstance(atom, (Sinks, Global))
        tokens = atom.count if isinstance(atom, Sinks) else atom.tokens
        if isinstance(tokens, int):
            prefix = max(prefix, tokens)
        else:
            listed.update(tokens)
    edges = [prefix - 1, *sorted(p for p in listed if prefix <= p < n), n]
    return [(a + 1, b - 1) for a, b in pairwise(edges) if b - a > 1]


def _is(term: Term, kind: type[Pattern]) -> bool:
    return term.step == 1 and len(term.others) == 1 and isinstance(term.others[0], kind)


def _sides(term: Term, n: int) -> str | None:
    """Where a term looks if neither step nor distance limits it: "past" or "both"; else None."""
    if term.step > 1 or term.left < n - 1 or 0 < term.right < n - 1:
        return None
    return "both" if term.right >= n - 1 else "past"


ANYWHERE: tuple[Form, ...] = (_band, _stride_and_window)
"""Forms that depend on distances alone, so that the first token may stand anywhere."""

FROM_ZERO: tuple[Form, ...] = (_chunks, _grid, _summaries, _stretches)
