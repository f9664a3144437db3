"""An attention call as tensors and plain values, which an operator can take.

A pattern is its text and the tensors that its leaves carry. A step is a word, and a table of what
its curve gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from eyeline.errors import NotSupported
from eyeline.memory import remembered
from eyeline.patterns import ATOMS, VOCABULARY, And, Blocks, Explicit, Not, Or, Pattern, parse
from eyeline.patterns.algebra import Compound
from eyeline.patterns.parser import MAX_CHARACTERS
from eyeline.registry import changes
from eyeline.scores import Bias, Factor, Product, Values
from eyeline.scores.relative import ScaledBias

# The words of patterns, users' own ones too: how an operator reads a pattern's text.


def check_words(pattern: Pattern) -> None:
    """Raise NotSupported for a pattern that its text would not give back.

    It asks only what torch.compile can trace.
    """
    kind, word = type(pattern), pattern.word()
    if kind not in (And, Or, Not) and VOCABULARY.get(word) is not kind:
        raise NotSupported(
            f"{kind.__module__}.{kind.__qualname__} is not registered under its word {word!r}: "
            "torch.compile reads patterns by their words, so put @register, of eyeline.patterns, "
            "before the class"
        )
    if isinstance(pattern, Compound):
        for part in pattern.parts:
            check_words(part)
    elif kind not in ATOMS:
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
    """``parse``, which remembers what it read, for a call that runs again and again."""
    return parse(text, bound) if bound else _parsed(text, changes())


@remembered(256)
def _parsed(text: str, changes: int) -> Pattern:
    """changes: how often words were added, of which one may have taken another's place."""
    return parse(text)


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
    q_segments: Tensor | None
    k_segments: Tensor | None
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
