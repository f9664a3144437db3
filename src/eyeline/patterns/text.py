"""The text form of patterns: ``str(p)`` writes it, and ``parse`` is its inverse."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping
from typing import Any

from eyeline.patterns.algebra import And, Not, Or
from eyeline.patterns.base import Pattern


def format_pattern(pattern: Pattern) -> str:
    """The canonical text. Bound leaves print as ``word(#i)``, i being their place in ``bound``."""
    numbers: dict[int, int] = {}
    for leaf in pattern.bound:
        numbers.setdefault(id(leaf), len(numbers))
    return _format(pattern, numbers)


def _format(pattern: Pattern, numbers: Mapping[int, int]) -> str:
    if isinstance(pattern, (And, Or)):
        sign = " & " if isinstance(pattern, And) else " | "
        return sign.join(_operand(part, numbers) for part in pattern.parts)
    if isinstance(pattern, Not):
        return "~" + _operand(pattern.inner, numbers)
    if id(pattern) in numbers:
        return f"{pattern.word()}(#{numbers[id(pattern)]})"
    given = _given(pattern, numbers)
    return f"{pattern.word()}({', '.join(given)})" if given else pattern.word()


def _given(pattern: Pattern, numbers: Mapping[int, int]) -> list[str]:
    """The arguments that differ from their defaults.

    Each has its name, but for a first one that stands alone or is a list.
    """
    defaults = _defaults(pattern)
    arguments = pattern.arguments()
    first = next(iter(arguments), None)
    given = {name: x for name, x in arguments.items() if not _same(x, defaults.get(name, _NONE))}
    alone = len(given) == 1 or isinstance(given.get(first or ""), (list, tuple))
    bare = first if alone else None
    return [
        ("" if name == bare else f"{name}=") + _value_text(value, numbers)
        for name, value in given.items()
    ]


def _defaults(pattern: object) -> dict[str, Any]:
    if not dataclasses.is_dataclass(pattern):
        return {}
    # A default is an attribute of the class. Fields say so too, but torch.compile cannot read them.
    names = (field.name for field in dataclasses.fields(pattern))
    return {name: getattr(type(pattern), name, _NONE) for name in names}


_NONE = object()


def _same(value: object, default: object) -> bool:
    return type(value) is type(default) and value == default


def _value_text(value: object, numbers: Mapping[int, int]) -> str:
    if isinstance(value, Pattern):
        return _format(value, numbers)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_value_text(entry, numbers) for entry in value)}]"
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, int):
        # torch.compile takes a number that differs from call to call for a variable, which has
        # no text; an index is the number itself.
        return str(operator.index(value))
    return "none" if value is None else str(value)


def _operand(part: Pattern, numbers: Mapping[int, int]) -> str:
    text = _format(part, numbers)
    return f"({text})" if isinstance(part, (And, Or)) else text
