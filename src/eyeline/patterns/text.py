"""The text form of patterns: ``str(p)`` and ``parse(text)`` are inverse.

expression := term ("|" term)*
term       := factor ("&" factor)*
factor     := "~" factor | "(" expression ")" | word [ "(" arguments ")" ]
arguments  := ( [name "="] (integer | "none") | "#" integer ) ("," …)*
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from eyeline.errors import InvalidArgument, PatternSyntaxError
from eyeline.patterns.algebra import And, Not, Or
from eyeline.patterns.base import Pattern

MAX_CHARACTERS = 10_000
MAX_DEPTH = 50

Vocabulary = Mapping[str, Callable[..., Pattern]]
_TOKEN = re.compile(r"\s*(?:([A-Za-z_][A-Za-z_0-9]*)|(-?[0-9]+)|(#[0-9]+)|([&|~(),=]))")


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
    arguments = pattern.arguments().items()
    given = [(name, "none" if value is None else str(value)) for name, value in arguments]
    if len(given) == 1:
        return f"{pattern.word()}({given[0][1]})"
    values = ", ".join(f"{name}={value}" for name, value in given)
    return f"{pattern.word()}({values})" if values else pattern.word()


def _operand(part: Pattern, numbers: Mapping[int, int]) -> str:
    text = _format(part, numbers)
    return f"({text})" if isinstance(part, (And, Or)) else text


@dataclass
class Parser:
    """A recursive-descent parser with limits on size and depth."""

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
            self._fail(f"expected & or | or the end, found {self._peek()!r}")
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
        if depth > MAX_DEPTH:
            self._fail(f"nested deeper than {MAX_DEPTH}")
        token = self._next()
        if token == "~":
            return Not(self._factor(depth + 1))
        if token == "(":
            inner = self._chain("|", Or.of, self._term, depth + 1)
            self._expect(")")
            return inner
        if not re.match(r"[A-Za-z_]", token):
            self._back(f"expected a pattern, found {token!r}" if token else "a pattern is missing")
        return self._call(token)

    def _call(self, word: str) -> Pattern:
        if word.lower() not in self.vocabulary:
            near = difflib.get_close_matches(word.lower(), self.vocabulary, n=1, cutoff=0.0)
            self._back(f"unknown pattern {word!r}; the nearest known one is {near[0]!r}")
        make, start = self.vocabulary[word.lower()], self.place - 1
        positional, named = self._arguments() if self._peek() == "(" else ([], {})
        if len(positional) == 1 and isinstance(positional[0], Pattern) and not named:
            return self._matching(word, positional[0])
        try:
            inspect.signature(make).bind(*positional, **named)
            return make(*positional, **named)
        except (TypeError, InvalidArgument) as error:
            at = self.tokens[start][1]
            raise PatternSyntaxError(self._pointing(f"{word}: {error}", at)) from None

    def _matching(self, word: str, leaf: Pattern) -> Pattern:
        if leaf.word() != word.lower():
            self._back(f"the bound pattern given here is {leaf.word()}, not {word}")
        return leaf

    def _arguments(self) -> tuple[list[object], dict[str, object]]:
        self._expect("(")
        positional: list[object] = []
        named: dict[str, object] = {}
        while self._peek() != ")":
            token = self._next()
            if self._peek() == "=":
                self._next()
                if token in named:
                    self._back(f"{token!r} is given twice")
                named[token] = self._value(self._next())
            elif named:
                self._back("a value without a name after one with a name")
            else:
                positional.append(self._value(token))
            if self._peek() != ")":
                self._expect(",")
        self._next()
        return positional, named

    def _value(self, token: str) -> object:
        if re.fullmatch(r"-?[0-9]{1,18}", token):
            return int(token)
        if token.lower() == "none":
            return None
        if re.fullmatch(r"#[0-9]{1,6}", token):
            if int(token[1:]) >= len(self.bound):
                self._back(f"{token} names a bound pattern; {len(self.bound)} were given")
            return self.bound[int(token[1:])]
        return self._back(f"expected a whole number or none, found {token!r}")

    def _peek(self) -> str:
        return self.tokens[self.place][0] if self.place < len(self.tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        self.place += 1
        return token

    def _expect(self, sign: str) -> None:
        if self._next() != sign:
            self._back(f"expected {sign!r}")

    def _back(self, message: str) -> Pattern:
        self.place -= 1
        return self._fail(message)

    def _fail(self, message: str) -> Pattern:
        ended = self.place >= len(self.tokens)
        at = len(self.text.rstrip()) if ended else self.tokens[self.place][1]
        raise PatternSyntaxError(self._pointing(message, at))

    def _pointing(self, message: str, at: int) -> str:
        before, after = self.text[max(at - 20, 0) : at], self.text[at : at + 20]
        return f"{message}, at character {at + 1}: {before}▶{after}"
