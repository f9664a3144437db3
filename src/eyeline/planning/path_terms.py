"""A pattern as a union of terms: a band of the diagonal, thinned by a step, and what else."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import final

from eyeline.patterns import And, Causal, Dilated, Full, Or, Pattern, SameDocument, Strided, Window

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
    if isinstance(pattern, (Full, SameDocument)) or pattern == ~Window(0, 0):
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
