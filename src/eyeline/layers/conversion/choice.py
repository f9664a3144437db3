"""Which attention module of a model gets which pattern."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import final

from torch import Tensor, nn

from eyeline.errors import InvalidArgument
from eyeline.exact.call import as_pattern
from eyeline.patterns import Full, Pattern

Choice = Pattern | Tensor | None
"""None: the module stays as it is."""

Patterns = (
    Pattern | Tensor | Callable[[str, nn.Module], Choice] | Mapping[str, Pattern | Tensor | None]
)
"""One for all, a function of a module's name and the module, or a table of names."""


@final
@dataclass(frozen=True)
class Found:
    """An attention module in a model. cross: whether torch's decoder looks at its memory by it."""

    names: tuple[str, ...]
    module: nn.MultiheadAttention
    cross: bool


def choose(patterns: Patterns, found: list[Found]) -> list[Pattern | None]:
    """The pattern of each module that was found, or None where it stays as it is.

    Raises InvalidArgument for a name in a table that stands for no module, for a pattern made for
    another number of heads, and for a tied module that would get two.
    """
    if isinstance(patterns, Mapping):
        _check_names(patterns, found)
    return [_of_module(patterns, each) for each in found]


def _of_module(patterns: Patterns, found: Found) -> Pattern | None:
    choices = [choice for name in found.names for choice in _of_name(patterns, name, found)]
    chosen = choices[0] if choices else None
    if any(other != chosen for other in choices):
        raise InvalidArgument(
            f"{' and '.join(found.names)} are one module, and would get the patterns "
            f"{' and '.join(str(x) for x in choices)}"
        )
    if chosen is not None and "batch" not in chosen.varies_by:
        try:
            chosen.check_call(1, found.module.num_heads)
        except InvalidArgument as error:
            raise InvalidArgument(f"{found.names[0]}: {error}") from None
    return chosen


def _of_name(patterns: Patterns, name: str, found: Found) -> list[Pattern | None]:
    """What is said of a name; nothing where a table does not mention it."""
    if isinstance(patterns, (Pattern, Tensor)):
        return [Full() if found.cross else as_pattern(patterns)]
    if not isinstance(patterns, Mapping):
        choice = patterns(name, found.module)
        return [None if choice is None else as_pattern(choice)]
    for key, choice in patterns.items():
        if fnmatchcase(name, key):
            named = "*" not in key.rpartition(".")[2]
            made = None if choice is None else as_pattern(choice)
            return [Full() if found.cross and not named and made is not None else made]
    return []


def _check_names(patterns: Mapping[str, object], found: list[Found]) -> None:
    names = [name for each in found for name in each.names]
    for key in patterns:
        if not any(fnmatchcase(name, key) for name in names):
            raise InvalidArgument(
                f"{key!r} is the name of no nn.MultiheadAttention in the model; there are "
                f"{', '.join(names)} (* stands for any part of a name)"
            )
