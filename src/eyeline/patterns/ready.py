"""Ready-made patterns: expressions that have a name of their own."""

from __future__ import annotations

from eyeline.patterns.base import Pattern
from eyeline.patterns.causal import Causal
from eyeline.patterns.numbers import check_whole
from eyeline.patterns.sinks import Sinks
from eyeline.patterns.window import Window


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
