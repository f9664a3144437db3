"""Configurations as JSON: plain numbers and words, checked by the fields' own types."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

from eyeline.encodings import rotary_scaling
from eyeline.errors import CheckpointError, NotSupported

# Values inside a configuration that are objects themselves are named by their class.
_NESTED: Mapping[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        rotary_scaling.Linear,
        rotary_scaling.NTK,
        rotary_scaling.YaRN,
        rotary_scaling.Llama3,
    )
}
_KIND = "kind"


def to_plain(config: Any) -> dict[str, Any]:
    """The fields of a configuration; ``from_plain`` is the inverse."""
    found = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return {name: _written(value) for name, value in found.items()}


def from_plain(cls: type[Any], values: object, *, model: str) -> Any:
    """The configuration. Raises CheckpointError for a value of another type or one that is
    missing, NotSupported for a name that it does not know.
    """
    if not isinstance(values, dict):
        raise CheckpointError(f"{model}: a configuration is an object, not {values!r:.60}")
    hints, fields = typing.get_type_hints(cls), dataclasses.fields(cls)
    unknown = sorted(set(values) - {field.name for field in fields})
    if unknown:
        raise NotSupported(f"{model}: unknown in the configuration: {', '.join(unknown):.200}")
    for field in fields:
        if field.name not in values and field.default is dataclasses.MISSING:
            raise CheckpointError(f"{model}: the configuration lacks {field.name}")
    read = {name: _read(values[name], hints[name], f"{model}: {name}") for name in values}
    return cls(**read)


def _written(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and type(value).__name__ in _NESTED:
        return {_KIND: type(value).__name__, **to_plain(value)}
    return value


def _read(value: object, hint: Any, place: str) -> Any:
    """The value, if it is of the type; an int serves as a float."""
    if isinstance(value, dict) and value.get(_KIND) in _NESTED:
        cls = _NESTED[str(value[_KIND])]
        inner = {name: each for name, each in value.items() if name != _KIND}
        value = from_plain(cls, inner, model=place)
    if not _fits(value, hint):
        raise CheckpointError(f"{place}={value!r:.60}: {_type_text(hint)} is due")
    return value


def _fits(value: object, hint: Any) -> bool:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(_fits(value, each) for each in typing.get_args(hint))
    if typing.get_origin(hint) is Literal:
        return value in typing.get_args(hint)
    if isinstance(value, bool):
        return hint is bool
    if hint is float:
        return isinstance(value, (int, float)) and math.isfinite(value)
    return isinstance(value, hint)


def _type_text(hint: Any) -> str:
    return getattr(hint, "__name__", str(hint)).replace("NoneType", "null")
