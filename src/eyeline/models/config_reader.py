"""Reading a model's configuration without ignoring anything that it says."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import NoReturn, final

from eyeline.encodings.rotary_scaling import Linear, Llama3, Scaling, YaRN
from eyeline.errors import CheckpointError, InvalidArgument, NotSupported

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


_DEFAULT_BASE = 10000.0


def read_rotary(
    attributes: Attributes, *, model: str, trained_length: int
) -> tuple[float, Scaling | None]:
    """(base, scaling). trained_length stands in where a file does not say the original length.

    Raises NotSupported, by name, for scalings that are not built and for what is not known in
    them; CheckpointError for what is missing, not a number in its range, or a contradiction.
    """
    name, values = _table(attributes, model)
    outer = _number(attributes, "rope_theta", model)
    if values is None:
        return outer if outer is not None else _DEFAULT_BASE, None
    model = f"{model}: {name}"
    inner = Attributes(values, model=model)
    base = _number(inner, "rope_theta", model)
    if outer is not None and base is not None and outer != base:
        raise CheckpointError(f"{model} says rope_theta={base}, outside it stands {outer}")
    given = base if base is not None else outer
    scaling = _scaling(inner, _kind(inner, model), model=model, trained_length=trained_length)
    inner.expect("partial_rotary_factor", 1.0)
    inner.done()
    return given if given is not None else _DEFAULT_BASE, scaling


def _table(attributes: Attributes, model: str) -> tuple[str, Mapping[str, object] | None]:
    """The one table there is, with its name."""
    both = {name: attributes.optional(name) for name in ("rope_scaling", "rope_parameters")}
    said = {name: value for name, value in both.items() if value is not None}
    if len(said) == 2 and said["rope_scaling"] != said["rope_parameters"]:
        raise CheckpointError(f"{model}: rope_scaling and rope_parameters differ: {said!r:.200}")
    for name, value in said.items():
        if not isinstance(value, Mapping):
            raise NotSupported(f"{model}: {name}={value!r:.120}: not a table of parameters")
        return name, value
    return "", None


def _kind(inner: Attributes, model: str) -> object:
    """rope_type, which older files call type."""
    kinds = [inner.optional("rope_type"), inner.optional("type")]
    said = [kind for kind in kinds if kind is not None]
    if len(said) == 2 and said[0] != said[1]:
        raise CheckpointError(f"{model} says rope_type={said[0]!r:.60} and type={said[1]!r:.60}")
    return said[0] if said else "default"


def _scaling(inner: Attributes, kind: object, *, model: str, trained_length: int) -> Scaling | None:
    try:
        if kind == "default":
            return None
        if kind == "linear":
            return Linear(inner.number("factor"))
        if kind == "llama3":
            return _llama3(inner, trained_length)
        if kind == "yarn":
            return _yarn(inner, model, trained_length)
    except InvalidArgument as error:
        raise CheckpointError(f"{model}: {error}") from error
    why = ""
    if kind == "dynamic":
        why = ": its speeds change with the length, and keys in a cache would keep the old ones"
    raise NotSupported(f"{model} has rope_type={kind!r:.60}, which is not built yet{why}")


def _llama3(inner: Attributes, trained_length: int) -> Llama3:
    return Llama3(
        inner.number("factor"),
        low_freq_factor=inner.number("low_freq_factor"),
        high_freq_factor=inner.number("high_freq_factor"),
        original_length=inner.whole("original_max_position_embeddings", trained_length),
    )


def _yarn(inner: Attributes, model: str, trained_length: int) -> YaRN:
    factor = inner.number("factor")
    magnitude = _number(inner, "attention_factor", model)
    weights = [_number(inner, name, model) for name in ("mscale", "mscale_all_dim")]
    if magnitude is None and weights[0] is not None and weights[1] is not None:
        over, under = (0.1 * weight * math.log(factor) + 1.0 for weight in weights if weight)
        magnitude = over / under
    elif weights != [None, None]:
        raise NotSupported(
            f"{model}: mscale and mscale_all_dim count together, without attention_factor; "
            f"here they are {weights[0]} and {weights[1]}, and it is {magnitude}"
        )
    return YaRN(
        factor,
        original_length=inner.whole("original_max_position_embeddings", trained_length),
        beta_fast=inner.number("beta_fast", 32.0),
        beta_slow=inner.number("beta_slow", 1.0),
        attention_factor=magnitude,
        truncate=inner.flag("truncate", True),
    )


def _number(attributes: Attributes, name: str, model: str) -> float | None:
    """A number above 0, or None if it is not said."""
    value = attributes.optional(name)
    return None if value is None else Attributes({name: value}, model=model).number(name)
