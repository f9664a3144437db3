"""Who may look at whom: patterns, their algebra, and their text form."""

from collections.abc import Callable as _Callable
from typing import TypeVar as _TypeVar

from eyeline.errors import InvalidArgument, PatternSyntaxError
from eyeline.patterns.algebra import And as And
from eyeline.patterns.algebra import Not as Not
from eyeline.patterns.algebra import Or as Or
from eyeline.patterns.base import EMPTY as EMPTY
from eyeline.patterns.base import FULL as FULL
from eyeline.patterns.base import PARTIAL as PARTIAL
from eyeline.patterns.base import Bounds as Bounds
from eyeline.patterns.base import Pattern as Pattern
from eyeline.patterns.base import View as View
from eyeline.patterns.blocks import Blocks as Blocks
from eyeline.patterns.bound import Explicit as Explicit
from eyeline.patterns.bound import Predicate as Predicate
from eyeline.patterns.global_tokens import Global as Global
from eyeline.patterns.global_tokens import Sinks as Sinks
from eyeline.patterns.local import Causal as Causal
from eyeline.patterns.local import Chunks as Chunks
from eyeline.patterns.local import DocumentsApart as DocumentsApart
from eyeline.patterns.local import Full as Full
from eyeline.patterns.local import SameSegment as SameSegment
from eyeline.patterns.local import Window as Window
from eyeline.patterns.local import check_sides as check_sides
from eyeline.patterns.local import kept_apart as kept_apart
from eyeline.patterns.parser import Parser as _Parser
from eyeline.patterns.per_head import PerHead as PerHead
from eyeline.patterns.random_blocks import Random as Random
from eyeline.patterns.ready import bigbird as bigbird
from eyeline.patterns.ready import longformer as longformer
from eyeline.patterns.ready import prefix_lm as prefix_lm
from eyeline.patterns.ready import sliding_window as sliding_window
from eyeline.patterns.ready import sparse_transformer as sparse_transformer
from eyeline.patterns.ready import streaming as streaming
from eyeline.patterns.sparse import Dilated as Dilated
from eyeline.patterns.sparse import FixedColumns as FixedColumns
from eyeline.patterns.sparse import Grid as Grid
from eyeline.patterns.sparse import Strided as Strided
from eyeline.registry import add_word as _add_word
from eyeline.registry import load_plugins as _load_plugins

ATOMS: tuple[type[Pattern], ...] = (
    Full, Causal, Window, Sinks, SameSegment, Chunks, Strided, Dilated, FixedColumns, Global,
    Blocks, Random, Grid, PerHead, Explicit, Predicate,
)  # fmt: skip

VOCABULARY: dict[str, _Callable[..., Pattern]] = {
    **{atom.word(): atom for atom in ATOMS},
    "sliding_window": sliding_window,
    "streaming": streaming,
    "prefix_lm": prefix_lm,
    "longformer": longformer,
    "bigbird": bigbird,
    "sparse_transformer": sparse_transformer,
}


_P = _TypeVar("_P", bound=Pattern)


def register(kind: type[_P]) -> type[_P]:
    """A decorator of a Pattern's class: ``parse``, saved folders, torch.compile and the command
    know its ``word()``.

    Raises InvalidArgument for a word that is taken.
    """
    if not isinstance(kind, type) or not issubclass(kind, Pattern):
        raise InvalidArgument(f"{kind!r:.60} is no Pattern: derive the class from it")
    _add_word(VOCABULARY, kind.word(), kind)
    return kind


def parse(text: str, bound: tuple[Pattern, ...] = ()) -> Pattern:
    """The pattern that a text describes; the inverse of ``str(pattern)``.

    text: for example ``"causal & (window(left=255, right=0) | sinks(4))"``. ``&`` binds tighter
    than ``|``, ``~`` tightest. The words are those of the atoms and the ready-made patterns;
    values may stand without their names. A value is a whole number, ``none``, a list, a pattern,
    or a word (``sparse_transformer(64, kind=fixed)``). bound: the patterns that ``#0``, ``#1``, …
    stand for.

    Words of your own are those of classes under ``register``.

    Raises PatternSyntaxError with the place in the text and the nearest known word, also for
    texts over 10,000 characters, nested deeper than 50, or with a list over 4,096 entries.
    """
    try:
        return _Parser(text, VOCABULARY, bound).parse()
    except PatternSyntaxError:
        if not _load_plugins():
            raise
    return _Parser(text, VOCABULARY, bound).parse()
