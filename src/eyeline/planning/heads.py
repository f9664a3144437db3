"""The rules that the heads of one call follow."""

from __future__ import annotations

from eyeline.errors import InvalidArgument
from eyeline.patterns import Pattern
from eyeline.planning.peeling import same


def rules(pattern: Pattern, heads: int) -> list[tuple[Pattern, int]]:
    """The different rules among ``heads`` heads, and how many heads follow each.

    Raises InvalidArgument for a pattern that differs per batch row, or was made for another
    number of heads.
    """
    if isinstance(heads, bool) or not isinstance(heads, int) or heads < 1:
        raise InvalidArgument(f"heads={heads!r}: a whole number from 1")
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
