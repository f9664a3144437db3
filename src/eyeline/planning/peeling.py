"""Taking a pattern apart where one of its atoms is dense in an order of its own.

With T such an atom, P₁ the pattern where T is replaced by "always" and P₀ where it is replaced by
"never", and T nowhere negated, P₀ ⊆ P₁ and

    P = P₀ | (T & P₁ & ~P₀)

The two are disjoint. P₀ knows nothing of T, and the rest lies within T's views.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from eyeline.checks import check_size
from eyeline.errors import InvalidArgument
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
    offers = [(leaf, leaf.views(q, k)) for leaf in _never_negated(pattern)]
    offers = [(leaf, views) for leaf, views in offers if views]
    if not offers:
        return None
    chosen, views = offers[0]
    never, always = replaced(pattern, chosen, False), replaced(pattern, chosen, True)
    rest = both(always, negated(never))
    grouped = both(chosen, rest)
    within = tuple((view, grouped if view.modulus > 1 else rest) for view in views)
    around: Rule = pattern
    for leaf, _ in offers:
        around = replaced(around, leaf, True)
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
    return by if same(rule, leaf) else rule


def pattern_of(rule: Rule) -> Pattern:
    """The rule as a pattern."""
    return rule if isinstance(rule, Pattern) else Full() if rule else ~Full()


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


def _never_negated(pattern: Pattern) -> list[Pattern]:
    """The different atoms that stand under an even number of ~ wherever they stand."""
    found = list(_leaves(pattern, True))
    negated = [leaf for leaf, sign in found if not sign]
    different: list[Pattern] = []
    for leaf, _ in found:
        if not any(same(leaf, other) for other in (*negated, *different)):
            different.append(leaf)
    return different


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


def same(a: Pattern, b: Pattern) -> bool:
    """Whether two atoms are one. Bound ones are compared by identity: they may hold tensors."""
    return a is b or (type(a) is type(b) and not a.bound and a == b)


# The rules that the heads of one call follow.


def rules(pattern: Pattern, heads: int) -> list[tuple[Pattern, int]]:
    """The different rules among ``heads`` heads, and how many heads follow each.

    Raises InvalidArgument for a pattern that differs per batch row, or was made for another
    number of heads.
    """
    check_size("heads", heads)
    if "batch" in pattern.varies_by:
        raise InvalidArgument(
            f"{pattern} differs per batch row: choose one with pattern.at(batch, head)"
        )
    pattern.check_call(1, heads)
    if "head" not in pattern.varies_by:
        return [(pattern, heads)]
    # Counted by comparing, not by hashing: a user's pattern need not hash.
    counted: list[tuple[Pattern, int]] = []
    for rule in (pattern.at(0, head) for head in range(heads)):
        place = next((i for i, (known, _) in enumerate(counted) if same(known, rule)), None)
        if place is None:
            counted.append((rule, 1))
        else:
            counted[place] = (rule, counted[place][1] + 1)
    return counted
