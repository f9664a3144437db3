"""Plans that do not fit this machine's memory are refused before they are begun."""

from __future__ import annotations

import os

from eyeline.errors import InvalidArgument

# Bytes that planning holds for each slot at its peak: positions, tiles, masks and their copies.
_SLOT = 192


def check_memory(queries: int, keys: int) -> None:
    """Raise InvalidArgument, with the estimate, if planning would need more than there is."""
    needed, there = (queries + keys) * _SLOT, _memory()
    if there is not None and needed > there:
        raise InvalidArgument(
            f"planning {queries:,} queries × {keys:,} keys takes about {needed / 2**30:,.0f} GiB, "
            f"and this machine has {there / 2**30:,.1f} GiB: plan the sequence in pieces, with "
            "q_tokens and k_tokens"
        )


def _memory() -> int | None:
    """The machine's memory in bytes, or None where it does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None
