"""What a pattern's structure says of the future, at any length.

``eyeline.planning.looks_ahead`` is the exact answer for one length. What is asked here knows no
length: which promise a mechanism can make.
"""

from __future__ import annotations

from eyeline.patterns.algebra import And, Compound, Not
from eyeline.patterns.base import Pattern
from eyeline.patterns.local import Causal, Window


def reads_in_steps(pattern: Pattern) -> str | None:
    """Why what looks like a pattern cannot be read in steps; None where it can."""
    if not never_looks_ahead(pattern):
        return f"under {pattern} tokens may look ahead: read the whole text at once"
    if "length" in pattern.varies_by:
        return (
            f"{pattern} differs per length of sequence, which is not known before the end: fix it "
            "with pattern.of_length(n), where n is the longest text to be read"
        )
    return None


def never_looks_ahead(pattern: Pattern) -> bool:
    """True if no token may attend to a later one, at any length.

    False may also mean that it is not known, as of an explicit matrix or a predicate.
    """
    if isinstance(pattern, Causal):
        return True
    if isinstance(pattern, Window):
        return pattern.right == 0
    if isinstance(pattern, And):
        return any(map(never_looks_ahead, pattern.parts))
    if isinstance(pattern, Compound) and not isinstance(pattern, Not):
        return all(map(never_looks_ahead, pattern.parts))
    return False
