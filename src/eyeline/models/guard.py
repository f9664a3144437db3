"""Reading a model's configuration without ignoring anything that it says."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NoReturn, final

from eyeline.errors import CheckpointError, NotSupported

_REQUIRED = object()


@final
class Attributes:
    """The attributes of a configuration, each of which must be read, expected or harmless.

    ``done`` raises NotSupported for those that were not, and names them: an attribute that a
    model does not know may change what it computes.
    """

    def __init__(self, values: Mapping[str, object], *, model: str) -> None:
        self._left, self._model = dict(values), model

    def whole(self, name: str, default: object = _REQUIRED) -> int:
        """A whole number of at least 1. Raises CheckpointError for another value, or none."""
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise CheckpointError(
                f"{self._model}: {name}={value!r:.60}, not a whole number above 0"
            )
        return value

    def number(self, name: str, default: object = _REQUIRED) -> float:
        """A number above 0. Raises CheckpointError for another value, or none."""
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e30:
            raise CheckpointError(f"{self._model}: {name}={value!r:.60}, not a number above 0")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or False. Raises CheckpointError for another value."""
        value = self._take(name, default)
        if not isinstance(value, bool):
            raise CheckpointError(f"{self._model}: {name}={value!r:.60}, not true or false")
        return value

    def probability(self, name: str, default: float) -> float:
        """A number from 0 to below 1. Raises CheckpointError for another value."""
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
            raise CheckpointError(f"{self._model}: {name}={value!r:.60}, not a probability below 1")
        return float(value)

    def optional(self, name: str) -> object:
        """The value, or None."""
        return self._left.pop(name, None)

    def require(self, name: str, *allowed: object) -> None:
        """Like ``expect``, and raises CheckpointError if the attribute is not there."""
        self._left[name] = self._take(name, _REQUIRED)
        self.expect(name, *allowed)

    def expect(self, name: str, *allowed: object) -> None:
        """Raises NotSupported if the attribute is there with a value that changes the model."""
        value = self._left.pop(name, allowed[0])
        if value not in allowed:
            self.refuse(name, value, *allowed)

    def refuse(self, name: str, value: object, *allowed: object) -> NoReturn:
        """Raises NotSupported: the value changes the model."""
        raise NotSupported(
            f"{self._model}: {name}={value!r:.60} is not built yet; "
            f"{' or '.join(map(repr, allowed))} is"
        )

    def harmless(self, names: Collection[str], *, prefixes: tuple[str, ...] = ()) -> None:
        """Attributes that change nothing of what the model computes."""
        for name in list(self._left):
            if name in names or name.startswith(prefixes):
                del self._left[name]

    def done(self) -> None:
        """Raises NotSupported, by name, if an attribute is left."""
        if self._left:
            named = ", ".join(f"{name}={value!r:.40}" for name, value in sorted(self._left.items()))
            raise NotSupported(
                f"{self._model}: unknown in the configuration, and not ignored: {named:.400}"
            )

    def _take(self, name: str, default: object) -> object:
        value = self._left.pop(name, None)
        if value is None and default is _REQUIRED:
            raise CheckpointError(f"{self._model}: the configuration lacks {name}")
        return value if value is not None else default
