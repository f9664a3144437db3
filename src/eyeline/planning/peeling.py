"""Taking a pattern apart where one of its atoms is dense in an order of its own.

With T such an atom, P₁ the pattern where T is replaced by "always" and P₀ where it is replaced by
"never", and T nowhere negated, P₀ ⊆ P₁ and

    P = P₀ | (T & P₁ & ~P₀)

The two are disjoint. P₀ knows nothing of T, and the rest lies within T's views.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from eyeline.patterns import And, Full, Not, Or, Pattern, View
from eyeline.tokens import Tokens

Rule = Pattern | bool
"""A pattern, or what allows everything (True) or nothing (False)."""


@dataclass(frozen=True)
class Peeled:
    """without: the pattern without an atom. within: what is left of it in each of its views.

    around: the pattern as if all atoms that have views allowed everything.
    """

    without: Rule
    within: tuple[tuple[View, Rule], ...]
    around: Rule


def peel(pattern: Pattern, q: Tokens, k: Tokens) -> Peeled | None:
    """Take the first atom with views out of the pattern; None if it has none."""
    signs: dict[Pattern, set[bool]] = {}
    for leaf, sign in _leaves(pattern, True):
        signs.setdefault(leaf, set()).add(sign)
    views = {leaf: leaf.views(q, k) for leaf, found in signs.items() if found == {True}}
    chosen = next((leaf for leaf, found in views.items() if found), None)
    if chosen is None:
        return None
    never, always = replaced(pattern, chosen, False), replaced(pattern, chosen, True)
    rest = both(always, negated(never))
    grouped = both(chosen, rest)
    within = tuple((view, grouped if view.modulus > 1 else rest) for view in views[chosen])
    around: Rule = pattern
    for leaf, found in views.items():
        around = replaced(around, leaf, True) if found else around
    return Peeled(never, within, around)


def common(pattern: Pattern) -> Rule:
    """Pairs that every head allows: the pattern where atoms that differ per head never do.

    False where such an atom is negated.
    """
    shared: Rule = pattern
    for leaf, sign in _leaves(pattern, True):
        if "head" in leaf.varies_by:
            shared = replaced(shared, leaf, False) if sign else False
    return shared


def replaced(rule: Rule, leaf: Pattern, by: bool) -> Rule:
    """The rule with an atom replaced by "always" or "never", and simplified."""
    if isinstance(rule, bool):
        return rule
    rule = rule.spelled_out()
    if isinstance(rule, Full):
        return True
    if isinstance(rule, Not):
        return negated(replaced(rule.inner, leaf, by))
    if isinstance(rule, (And, Or)):
        absorbing = isinstance(rule, Or)
        members = [replaced(member, leaf, by) for member in rule.parts]
        if any(member is absorbing for member in members):
            return absorbing
        left = tuple(member for member in members if isinstance(member, Pattern))
        return rule.rebuild(left) if len(left) > 1 else left[0] if left else not absorbing
    return by if _same(rule, leaf) else rule


def both(a: Rule, b: Rule) -> Rule:
    """a & b."""
    if isinstance(a, bool):
        return b if a else False
    if isinstance(b, bool):
        return a if b else False
    return a & b


def negated(rule: Rule) -> Rule:
    """~rule, without two negations in a row."""
    if isinstance(rule, bool):
        return not rule
    return rule.inner if isinstance(rule, Not) else ~rule


def _leaves(pattern: Pattern, sign: bool) -> Iterator[tuple[Pattern, bool]]:
    """The atoms of a pattern, and whether each stands under an even number of ~."""
    pattern = pattern.spelled_out()
    if isinstance(pattern, Not):
        yield from _leaves(pattern.inner, not sign)
    elif isinstance(pattern, (And, Or)):
        for part in pattern.parts:
            yield from _leaves(part, sign)
    else:
        yield pattern, sign


def _same(a: Pattern, b: Pattern) -> bool:
    return a is b or (type(a) is type(b) and a == b)
