"""From a text to a pattern: a recursive-descent parser with limits, never ``eval``.

expression := term ("|" term)*
term       := factor ("&" factor)*
factor     := "~" factor | "(" expression ")" | word [ "(" arguments ")" ]
arguments  := "#" integer | ( [name "="] value ) ("," …)*
value      := integer | "none" | word | expression | "[" [ value ("," value)* ] "]"

A word that is a value stands for itself, as in ``kind=fixed``, unless it is a whole pattern.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from eyeline.errors import InvalidArgument, PatternSyntaxError
from eyeline.patterns.algebra import And, Not, Or
from eyeline.patterns.base import Pattern

MAX_CHARACTERS = 10_000
MAX_DEPTH = 50
MAX_ENTRIES = 4096

# Words that once were patterns, or are taken for one, and what to write.
_INSTEAD = {
    "same_document": "documents that tokens name are apart under every pattern: leave the word "
    "out; for stretches that attend to one another both ways name segments, and write same_segment"
}

Vocabulary = Mapping[str, Callable[..., Pattern]]
_TOKEN = re.compile(r"\s*(?:([A-Za-z_][A-Za-z_0-9]*)|(-?[0-9]+)|(#[0-9]+)|([&|~(),=\[\]]))")
_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]{0,39}")


@dataclass
class Parser:
    """Reads one text. vocabulary: what each word makes; bound: what #0, #1, … stand for."""

    text: str
    vocabulary: Vocabulary
    bound: Sequence[Pattern] = ()
    place: int = 0
    tokens: list[tuple[str, int]] = field(default_factory=list)

    def parse(self) -> Pattern:
        if len(self.text) > MAX_CHARACTERS:
            raise PatternSyntaxError(
                f"the pattern's text has {len(self.text):,} characters; "
                f"the limit is {MAX_CHARACTERS:,}"
            )
        self._split()
        pattern = self._chain("|", Or.of, self._term, depth=0)
        if self._peek():
            self._fail(f"expected & or | or the end, found {_short(self._peek())!r}", self.place)
        return pattern

    def _split(self) -> None:
        at, end = 0, len(self.text.rstrip())
        while at < end:
            match = _TOKEN.match(self.text, at)
            if match is None:
                at += len(self.text[at:]) - len(self.text[at:].lstrip())
                raise PatternSyntaxError(self._pointing(f"unexpected {self.text[at]!r}", at))
            index = match.lastindex or 0
            self.tokens.append((match.group(index), match.start(index)))
            at = match.end()

    def _chain(
        self,
        sign: str,
        join: Callable[..., Pattern],
        operand: Callable[[int], Pattern],
        depth: int,
    ) -> Pattern:
        members = [operand(depth)]
        while self._peek() == sign:
            self._next()
            members.append(operand(depth))
        return join(*members) if len(members) > 1 else members[0]

    def _term(self, depth: int) -> Pattern:
        return self._chain("&", And.of, self._factor, depth)

    def _factor(self, depth: int) -> Pattern:
        self._limit(depth)
        token = self._next()
        if token == "~":
            return Not(self._factor(depth + 1))
        if token == "(":
            inner = self._chain("|", Or.of, self._term, depth + 1)
            self._expect(")")
            return inner
        if not re.match(r"[A-Za-z_]", token):
            self._back(
                f"expected a pattern, found {_short(token)!r}" if token else "a pattern is missing"
            )
        return self._call(token, depth)

    def _call(self, word: str, depth: int) -> Pattern:
        start = self.place - 1
        if word.lower() not in self.vocabulary:
            self._unknown(start)
        if self._peek() == "(" and self._peek(1).startswith("#"):
            return self._numbered(word)
        positional, named = self._arguments(depth) if self._peek() == "(" else ([], {})
        make = self.vocabulary[word.lower()]
        try:
            inspect.signature(make).bind(*positional, **named)
            return make(*positional, **named)
        except (TypeError, InvalidArgument) as error:
            wrong = f"{word}: {_short(str(error))}"
        raise self._error(wrong, start)

    def _numbered(self, word: str) -> Pattern:
        """The bound pattern that ``(#i)`` stands for."""
        self._expect("(")
        at, token = self.place, self._next()
        if not re.fullmatch(r"#[0-9]{1,6}", token) or int(token[1:]) >= len(self.bound):
            self._fail(f"{_short(token)} names a bound pattern; {len(self.bound)} were given", at)
        self._expect(")")
        leaf = self.bound[int(token[1:])]
        if leaf.word() != word.lower():
            self._fail(f"the bound pattern given here is {leaf.word()}, not {word}", at)
        return leaf

    def _arguments(self, depth: int) -> tuple[list[object], dict[str, object]]:
        self._expect("(")
        positional: list[object] = []
        named: dict[str, object] = {}
        while self._peek() != ")":
            if self._peek(1) == "=":
                name = self._next()
                if name in named or not _WORD.fullmatch(name):
                    self._back(f"{_short(name)!r} is given twice or is no name")
                self._next()
                named[name] = self._value(depth)
            elif named:
                self._fail("a value without a name after one with a name", self.place)
            else:
                positional.append(self._value(depth))
            if self._peek() != ")":
                self._expect(",")
        self._next()
        return positional, named

    def _value(self, depth: int, *, in_list: bool = False) -> object:
        token = self._peek()
        if re.fullmatch(r"-?[0-9]{1,19}", token):
            return int(self._next())
        if token.lower() == "none":
            self._next()
            return None
        if token == "[":
            return self._list(depth + 1)
        if token in ("~", "(") or self._names_pattern(token, in_list):
            return self._chain("|", Or.of, self._term, depth + 1)
        if not _WORD.fullmatch(token):
            self._fail(
                f"expected a whole number, none, a word, a list or a pattern, found "
                f"{_short(token)!r}",
                self.place,
            )
        if in_list:
            self._unknown(self.place)
        return self._next()

    def _names_pattern(self, word: str, in_list: bool) -> bool:
        """Whether a word begins a pattern, and is not a word that stands for itself."""
        if self._peek(1) == "(" and _WORD.fullmatch(word):
            return True
        make = self.vocabulary.get(word.lower())
        if make is None or in_list or self._peek(1) in ("&", "|"):
            return make is not None
        # kind=strided: an atom that needs arguments and has none is no pattern.
        required = inspect.signature(make).parameters.values()
        return all(parameter.default is not inspect.Parameter.empty for parameter in required)

    def _list(self, depth: int) -> list[object]:
        self._limit(depth)
        self._expect("[")
        entries: list[object] = []
        while self._peek() != "]":
            if len(entries) == MAX_ENTRIES:
                self._fail(f"a list of more than {MAX_ENTRIES:,} entries", self.place)
            entries.append(self._value(depth, in_list=True))
            if self._peek() != "]":
                self._expect(",", or_="]")
        self._next()
        return entries

    def _limit(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            self._fail(f"nested deeper than {MAX_DEPTH}", self.place)

    def _unknown(self, place: int) -> NoReturn:
        word = self.tokens[place][0]
        if word.lower() in _INSTEAD:
            self._fail(f"{word} is no pattern: {_INSTEAD[word.lower()]}", place)
        near = difflib.get_close_matches(word.lower()[:40], self.vocabulary, n=1, cutoff=0.0)
        self._fail(
            f"unknown pattern {_short(word)!r}; the nearest known one is {near[0]!r} (one of your "
            "own: --import the module that registers it)",
            place,
        )

    def _peek(self, ahead: int = 0) -> str:
        place = self.place + ahead
        return self.tokens[place][0] if place < len(self.tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        self.place += 1
        return token

    def _expect(self, sign: str, *, or_: str | None = None) -> None:
        if self._next() != sign:
            self._back(f"expected {sign!r}" + (f" or {or_!r}" if or_ is not None else ""))

    def _back(self, message: str) -> NoReturn:
        self._fail(message, self.place - 1)

    def _fail(self, message: str, place: int) -> NoReturn:
        raise self._error(message, place)

    def _error(self, message: str, place: int) -> PatternSyntaxError:
        ended = place >= len(self.tokens)
        at = len(self.text.rstrip()) if ended else self.tokens[place][1]
        return PatternSyntaxError(self._pointing(message, at))

    def _pointing(self, message: str, at: int) -> str:
        before, after = self.text[max(at - 20, 0) : at], self.text[at : at + 20]
        return f"{message}, at character {at + 1}: {before}▶{after}"


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:150]}…"
