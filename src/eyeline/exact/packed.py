"""An attention call as tensors and plain values, which an operator can take.

A pattern is its text and the tensors that its leaves carry. A step is a word, and a table of what
its curve gives.
"""

from __future__ import annotations

import gc
import inspect
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from torch import Tensor

from eyeline.errors import NotSupported, PatternSyntaxError
from eyeline.patterns import VOCABULARY, And, Blocks, Explicit, Not, Or, Pattern
from eyeline.patterns.algebra import Compound
from eyeline.patterns.parser import MAX_CHARACTERS, Parser
from eyeline.scores import Bias, Factor, Product, Values
from eyeline.scores.relative import ScaledBias

# The words of patterns, users' own ones too: how an operator reads a pattern's text.


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


CURVES: dict[str, type[Bias | ScaledBias | Product | Values | Factor]] = {
    "bias": Bias,
    "scaled_bias": ScaledBias,
    "product": Product,
    "values": Values,
    "factor": Factor,
}
"""The steps that have a table."""


class Packed(NamedTuple):
    """The operator's arguments: tensors, lists of tensors, plain values.

    q_positions, …: the tokens; None where the call omits them. seed: of dropout.
    tables: those of the steps that have one. bound: what the pattern's leaves #0, #1, … carry.
    pattern: its text. leaves: what each of ``bound`` is, ``explicit`` or ``blocks 64``.
    steps: ``bias``; ``bias -128`` if its table begins at this distance and holds all that its
    curve tells apart; ``softcap``; ``dropout``. numbers: the scale, then what the last two take.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    q_positions: Tensor | None
    k_positions: Tensor | None
    q_documents: Tensor | None
    k_documents: Tensor | None
    seed: Tensor | None
    tables: Sequence[Tensor]
    bound: Sequence[Tensor]
    pattern: str
    leaves: str
    steps: str
    numbers: Sequence[float]

    def rule(self) -> Pattern:
        """The pattern that its text and tensors describe."""
        bound: list[Pattern] = []
        for entry, x in zip(entries(self.leaves), self.bound, strict=True):
            kind, *size = entry.split()
            bound.append(Blocks(x, int(size[0])) if kind == "blocks" else Explicit(x))
        return read(self.pattern, tuple(bound))


def entries(text: str) -> list[str]:
    """What ``;`` keeps apart."""
    return text.split(";") if text else []


def packed_pattern(pattern: Pattern) -> tuple[str, str, list[Tensor]]:
    """The text of a pattern, what its bound leaves are, and the tensors they carry.

    Raises NotSupported for leaves that carry anything else, and for words that mean another one.
    """
    check_words(pattern)
    text = str(pattern)
    if len(text) > MAX_CHARACTERS:
        raise NotSupported(
            f"the pattern's text has {len(text):,} characters, torch.compile takes "
            f"{MAX_CHARACTERS:,} at most: write it as Explicit(tensor)"
        )
    leaves: list[Pattern] = []
    for leaf in pattern.bound:
        if not any(leaf is known for known in leaves):
            leaves.append(leaf)
    each = [_packed_leaf(leaf) for leaf in leaves]
    return text, ";".join(kind for kind, _ in each), [x for _, x in each]


def _packed_leaf(leaf: Pattern) -> tuple[str, Tensor]:
    if isinstance(leaf, Explicit):
        return "explicit", leaf.mask
    if isinstance(leaf, Blocks):
        return f"blocks {leaf.size}", leaf.layout
    raise NotSupported(
        f"{leaf.word()} cannot go through torch.compile, since it carries a callable or tensors "
        "that only it can read: write it as an expression of patterns or as Explicit(tensor), or "
        "call attention in a function with @torch.compiler.disable"
    )
