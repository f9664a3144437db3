"""A mechanism before its heads are known: a name and options, as a value with a text form.

    recipe := word [ "(" [ name "=" value ("," name "=" value)* ] ")" ]
    value  := integer | decimal | true | false | none | word

Models, saved folders and the command line name mechanisms so; ``make`` builds the module.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from eyeline.errors import InvalidArgument
from eyeline.mechanisms.base import MECHANISMS, Heads, Mechanism
from eyeline.patterns import Pattern
from eyeline.registry import has_word

Option = int | float | bool | str | None

MAX_CHARACTERS = 500
_RECIPE = re.compile(r"\s*([a-z_][a-z_0-9]*)\s*(?:\((.*)\))?\s*", re.DOTALL)
_OPTION = re.compile(r"\s*([a-z_][a-z_0-9]*)\s*=\s*([A-Za-z_0-9.+-]+)\s*")
_WORDS: Mapping[str, Option] = {"true": True, "false": False, "none": None}


@final
@dataclass(frozen=True)
class Recipe:
    """A mechanism by its word, with its options; ``str`` and ``recipe`` are inverse.

    The options are those of the class's constructor, with its defaults. Raises InvalidArgument for
    a word that no class is registered under, and for options it does not have.
    """

    name: str = "exact"
    options: tuple[tuple[str, Option], ...] = ()

    def __post_init__(self) -> None:
        if not has_word(MECHANISMS, self.name):
            raise InvalidArgument(
                f"there is no mechanism {self.name!r}; there are: {', '.join(sorted(MECHANISMS))}; "
                "one of your own is known once the module that registers it is imported "
                "(--import MODULE)"
            )
        options = self.kind.options()
        takes = [x.replace(kind=inspect.Parameter.KEYWORD_ONLY) for x in options.values()]
        try:
            inspect.Signature(takes).bind(**dict(self.options))
        except TypeError as error:
            listed = ", ".join(options) if options else "no options"
            raise InvalidArgument(f"{self}: {error}; {self.name} takes {listed}") from None

    @property
    def kind(self) -> type[Mechanism]:
        """The class."""
        return MECHANISMS[self.name]

    def make(self, pattern: Pattern, heads: Heads, *, dropout: float = 0.0) -> Mechanism:
        """The module. Raises InvalidArgument or NotSupported for what it cannot honour."""
        return self.kind.for_heads(heads, pattern, dropout=dropout, **dict(self.options))

    def __str__(self) -> str:
        listed = ", ".join(f"{name}={_text(value)}" for name, value in self.options)
        return f"{self.name}({listed})" if listed else self.name


def recipe(text: str) -> Recipe:
    """From ``extra_keys(count=16)`` to a Recipe. Raises InvalidArgument with what was read."""
    return Recipe(*word_and_options(text))


def word_and_options(text: str) -> tuple[str, tuple[tuple[str, Option], ...]]:
    """The word of a recipe and its options, whether or not there is such a mechanism."""
    found = _RECIPE.fullmatch(text) if len(text) <= MAX_CHARACTERS else None
    if found is None:
        raise InvalidArgument(
            f"mechanism {text[:80]!r} is not of the form name(option=value, option=value)"
        )
    inner = (found[2] or "").strip()
    options = [_option(part) for part in inner.split(",")] if inner else []
    names = [name for name, _ in options]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidArgument(f"mechanism {text!r}: {twice} is given twice")
    return found[1], tuple(options)


def _option(part: str) -> tuple[str, Option]:
    found = _OPTION.fullmatch(part)
    if found is None:
        raise InvalidArgument(f"mechanism option {part.strip()!r} is not of the form name=value")
    return found[1], _value(found[2])


def _value(text: str) -> Option:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if re.fullmatch(r"[+-]?\d+", text):
        if len(text) > 10 or abs(int(text)) >= 1 << 31:  # a size out of a file, or a slip
            raise InvalidArgument(f"mechanism option value {text:.40}: it is below 2,147,483,648")
        return int(text)
    if re.fullmatch(r"[+-]?(\d+\.\d*|\.\d+|\d+(\.\d*)?[eE][+-]?\d+)", text):
        return float(text)
    if re.fullmatch(r"[A-Za-z_][A-Za-z_0-9]*", text):
        return text
    raise InvalidArgument(f"mechanism option value {text!r}: a number or a word is due")


def _text(value: Option) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
