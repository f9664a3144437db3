"""The words of patterns, users' own ones too: how an operator reads a pattern's text."""

from __future__ import annotations

import gc
import inspect
import re
from collections.abc import Iterator
from functools import lru_cache

from eyeline.errors import NotSupported, PatternSyntaxError
from eyeline.patterns import VOCABULARY, And, Not, Or, Pattern
from eyeline.patterns.algebra import Compound
from eyeline.patterns.parser import Parser


def check_words(pattern: Pattern) -> None:
    """Raise NotSupported for a pattern that its text would not give back.

    It asks only what torch.compile can trace.
    """
    kind, word = type(pattern), pattern.word()
    if kind not in (And, Or, Not) and VOCABULARY.get(word, kind) is not kind:
        raise NotSupported(
            f"{kind.__module__}.{kind.__qualname__} has the word {word!r}, which is eyeline's own: "
            "torch.compile reads patterns by their words, so give it another name"
        )
    if isinstance(pattern, Compound):
        for part in pattern.parts:
            check_words(part)
    elif word not in VOCABULARY:
        for name, value in pattern.arguments().items():
            _check_value(f"{word} {name}", value)


def _check_value(name: str, value: object) -> None:
    if isinstance(value, Pattern):
        check_words(value)
    elif isinstance(value, (list, tuple)):
        for entry in value:
            _check_value(name, entry)
    elif value is not None and not isinstance(value, (int, str)):
        raise NotSupported(
            f"{name} is a {type(value).__name__}: torch.compile reads patterns by their text, in "
            "which stand whole numbers, none, words, patterns and lists of these"
        )


def read(text: str, bound: tuple[Pattern, ...] = ()) -> Pattern:
    """``parse`` for which every class of patterns that this process knows is a word.

    Raises PatternSyntaxError for other words, NotSupported where a word is that of two classes.
    """
    if bound:
        return _read(text, bound)
    try:
        return _remembered(text)
    except PatternSyntaxError:
        return _read(text, ())


@lru_cache(maxsize=256)
def _remembered(text: str) -> Pattern:
    return Parser(text, VOCABULARY).parse()


def _read(text: str, bound: tuple[Pattern, ...]) -> Pattern:
    try:
        return Parser(text, VOCABULARY, bound).parse()
    except PatternSyntaxError:
        return Parser(text, {**_own_words(text), **VOCABULARY}, bound).parse()


def _own_words(text: str) -> dict[str, type[Pattern]]:
    """The words of classes outside eyeline, of which the text may use those of one class only."""
    kinds, used = _own_kinds(), set(re.findall(r"\w+", text))
    if any(len(kinds[word]) > 1 for word in used & kinds.keys()):
        # A class that was defined anew may have left its first self behind, not freed yet.
        kinds.clear()
        gc.collect()
        kinds = _own_kinds()
    for word in sorted(used & kinds.keys()):
        if len(kinds[word]) > 1:
            raise NotSupported(
                f"{len(kinds[word])} classes of patterns have the word {word!r}: torch.compile "
                "reads patterns by their words, so rename one of them"
            )
    return {word: each[0] for word, each in kinds.items()}


def _own_kinds() -> dict[str, list[type[Pattern]]]:
    found: dict[str, list[type[Pattern]]] = {}
    for kind in _below(Pattern):  # type: ignore[type-abstract]
        if not inspect.isabstract(kind) and kind.word() not in VOCABULARY:
            found.setdefault(kind.word(), []).append(kind)
    return found


def _below(kind: type[Pattern]) -> Iterator[type[Pattern]]:
    for each in kind.__subclasses__():
        yield each
        yield from _below(each)
