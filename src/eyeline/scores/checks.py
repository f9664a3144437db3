"""Whether a score modifier was made for the heads and widths that it meets."""

from __future__ import annotations

from eyeline.errors import InvalidArgument


def check_heads(name: str, made: int, found: int) -> None:
    """Raise InvalidArgument unless it was made for as many query heads as there are."""
    if made != found:
        raise InvalidArgument(f"{name} was made for {made} heads, the query has {found}")


def check_width(name: str, made: int, found: int) -> None:
    """Raise InvalidArgument unless its vectors are as wide as what they meet. name: which ones."""
    if made != found:
        raise InvalidArgument(f"{name} vectors are {made} wide, a head's are {found}")
