"""How much is computed at once where the whole would take memory that grows with L · C."""

from __future__ import annotations

# So many numbers are held at once, about: 8 MiB of float32, which stay in a processor's cache.
_NUMBERS = 1 << 21


def at_once(numbers: int) -> int:
    """How many things of so many numbers each are held together, at least one."""
    return max(_NUMBERS // max(numbers, 1), 1)
