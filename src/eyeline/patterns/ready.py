"""Ready-made patterns: expressions that have a name of their own."""

from __future__ import annotations

from collections.abc import Sequence

from eyeline.checks import check_whole
from eyeline.errors import InvalidArgument
from eyeline.patterns.base import Pattern
from eyeline.patterns.global_tokens import Global, Sinks
from eyeline.patterns.local import Causal, Chunks, Window
from eyeline.patterns.random_blocks import Random
from eyeline.patterns.sparse import FixedColumns, Strided


def sliding_window(size: int) -> Pattern:
    """``causal & window(left=size - 1, right=0)``: the last ``size`` tokens, itself included.

    The meaning of transformers' ``sliding_window=size``. Beltagy et al. 2020; Jiang et al. 2023.
    Raises InvalidArgument for a size below 1.
    """
    check_whole("sliding_window size", size, least=1)
    return Causal() & Window(left=size - 1, right=0)


def streaming(size: int, sinks: int) -> Pattern:
    """``causal & (window(left=size - 1, right=0) | sinks(sinks))``.

    The last ``size`` tokens and the first ``sinks`` ones. Xiao et al. 2023 (StreamingLLM).
    Raises InvalidArgument for a size below 1 or a negative number of sinks.
    """
    check_whole("streaming size", size, least=1)
    return Causal() & (Window(left=size - 1, right=0) | Sinks(sinks))


def prefix_lm(length: int) -> Pattern:
    """``causal | sinks(length)``: all see the first ``length`` tokens, the rest is causal.

    Raffel et al. 2020 (T5), "prefix LM". Raises InvalidArgument for a negative length.
    """
    return Causal() | Sinks(length)


def longformer(radius: int, global_positions: int | Sequence[int]) -> Pattern:
    """``window(left=radius, right=radius) | global(global_positions)``.

    ``radius`` neighbours on each side, and tokens that see all and are seen by all: a number n
    for the first n, or a list of positions. Beltagy et al. 2020 (Longformer), whose window of w
    tokens is radius = w / 2. Raises InvalidArgument for a negative radius or position.
    """
    check_whole("longformer radius", radius, least=0)
    return Window(left=radius, right=radius) | Global(global_positions)


def bigbird(block: int, random: int, global_blocks: int, seed: int = 0, layer: int = 0) -> Pattern:
    """``chunks(block, left=1, right=1) | global(block · global_blocks) | random(random, block)``.

    By blocks of ``block`` tokens: its own and one on each side; the first ``global_blocks`` of
    them see all and are seen by all; ``random`` others, drawn anew for each head and each
    ``layer``. Zaheer et al. 2020 (BigBird).

    transformers makes the first and the last block global. For n tokens that is ``bigbird(block,
    random, 0) | Global([*range(block), *range(n - block, n)])``.

    Raises InvalidArgument for a block below 1 or negative numbers.
    """
    check_whole("bigbird block", block, least=1)
    check_whole("bigbird random", random, least=0)
    check_whole("bigbird global_blocks", global_blocks, least=0)
    near, everywhere = Chunks(block, left=1, right=1), Global(block * global_blocks)
    return near | everywhere | Random(random, block, seed=seed, layer=layer)


def sparse_transformer(stride: int, kind: str = "strided", width: int = 1) -> Pattern:
    """Both sets of keys that a Sparse Transformer's token looks at, in one head.

    kind="strided": ``causal & (window(left=stride, right=0) | strided(stride))``, the last
    ``stride`` tokens and itself, and every stride-th token before it.
    kind="fixed": ``causal & (chunks(stride) | fixed_columns(stride, width))``, its own stretch of
    ``stride`` tokens, and the last ``width`` tokens of each stretch before it.

    For a head each, write ``PerHead([Causal() & Window(stride, 0), Causal() & Strided(stride)])``.
    Child et al. 2019, where stride is l and width is c.

    Raises InvalidArgument for another kind, a stride below 1, a width that is not in 1 … stride,
    and a width with kind="strided", which has none.
    """
    check_whole("sparse_transformer stride", stride, least=1)
    check_whole("sparse_transformer width", width, least=1)
    if kind == "fixed":
        return Causal() & (Chunks(stride) | FixedColumns(stride, width))
    if kind != "strided":
        raise InvalidArgument(f'sparse_transformer kind={kind!r}: it is "strided" or "fixed"')
    if width != 1:
        raise InvalidArgument(
            f'sparse_transformer width={width} is for kind="fixed": "strided" has no width'
        )
    return Causal() & (Window(left=stride, right=0) | Strided(stride))
