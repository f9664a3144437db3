"""The numbers that patterns take."""

from __future__ import annotations

from eyeline.errors import InvalidArgument
from eyeline.tokens import LARGEST


def check_whole(name: str, value: object, *, least: int) -> None:
    """Raise InvalidArgument unless ``least`` <= value < 2^60 is a whole number."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or not least <= int(value) < LARGEST:  # type: ignore[call-overload]
        raise InvalidArgument(f"{name}={value!r}: a whole number from {least} to 2^60 - 1")
