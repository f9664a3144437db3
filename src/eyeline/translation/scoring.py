"""How good translations are: exact match and character error rate, beside doing nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eyeline.errors import InvalidArgument


@dataclass(frozen=True)
class Report:
    """Shares of 1, over pairs of a source and its reference.

    exact: answers that are the reference. error_rate: edits (characters put in, taken out or
    exchanged) from answers to references, over the characters of the references; it can be above
    1. copy_exact, copy_error_rate: the same of copying the source, the baseline. changed: pairs
    whose reference is not the source, where copying is always wrong; changed_exact: exact among
    them, 0 if there is none.
    """

    pairs: int
    exact: float
    error_rate: float
    copy_exact: float
    copy_error_rate: float
    changed: int
    changed_exact: float


def report(sources: Sequence[str], answers: Sequence[str], references: Sequence[str]) -> Report:
    """What ``Report`` says. Raises InvalidArgument for no pair, or lists of different lengths."""
    if not len(sources) == len(answers) == len(references) or not sources:
        raise InvalidArgument(
            f"{len(sources)} sources, {len(answers)} answers and {len(references)} references: "
            "one of each for every pair, and at least one pair"
        )
    characters = max(sum(map(len, references)), 1)
    pairs = list(zip(sources, answers, references, strict=True))
    right = [answer == reference for _, answer, reference in pairs]
    changed = [source != reference for source, _, reference in pairs]
    moved = sum(changed)
    return Report(
        pairs=len(pairs),
        exact=sum(right) / len(pairs),
        error_rate=sum(edit_distance(a, r) for _, a, r in pairs) / characters,
        copy_exact=(len(pairs) - moved) / len(pairs),
        copy_error_rate=sum(edit_distance(s, r) for s, _, r in pairs) / characters,
        changed=moved,
        changed_exact=sum(map(min, right, changed)) / moved if moved else 0.0,
    )


def edit_distance(one: str, other: str) -> int:
    """The fewest characters to put in, take out or exchange, from one text to the other.

    d[i, j] = min(d[i-1, j] + 1, d[i, j-1] + 1, d[i-1, j-1] + (one[i] ≠ other[j])), row by row.
    Levenshtein 1966; Wagner and Fischer 1974. Time is the product of the lengths.
    """
    if one == other:
        return 0
    above = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        row = [i]
        for j, b in enumerate(other, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (a != b)))
        above = row
    return above[-1]
