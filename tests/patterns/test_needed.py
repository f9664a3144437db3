"""Which cached keys can never be looked at again: sound everywhere, tight for what is common."""

from __future__ import annotations

import pytest
import torch

from eyeline.patterns import (
    Causal,
    Chunks,
    Full,
    Pattern,
    SameDocument,
    Sinks,
    Window,
    prefix_lm,
    sliding_window,
    streaming,
)  # fmt: skip
from eyeline.tokens import Tokens

KEPT: list[tuple[Pattern, int, list[int]]] = [
    (Causal(), 9, list(range(10))),
    (Full(), 9, list(range(10))),
    (sliding_window(3), 8, [6, 7, 8, 9]),
    (sliding_window(1), 8, [8, 9]),
    (streaming(size=3, sinks=2), 8, [0, 1, 6, 7, 8, 9]),
    (Sinks(4), 100, [0, 1, 2, 3]),
    (Window(2, None), 7, [5, 6, 7, 8, 9]),
    (prefix_lm(3), 8, list(range(10))),
    (Causal() & Chunks(4), 8, [8, 9]),
    (Causal() & Chunks(4), 7, [4, 5, 6, 7, 8, 9]),
    (Causal() & ~Sinks(5), 8, [5, 6, 7, 8, 9]),
]


@pytest.mark.parametrize(("pattern", "at", "kept"), KEPT)
def test_exactly_these_are_kept(pattern: Pattern, at: int, kept: list[int]) -> None:
    needed = pattern.needed(Tokens.arange(0, 10), at)
    assert needed.nonzero()[:, 0].tolist() == kept


def test_nobody_is_not_needed() -> None:
    assert Full().needed(Tokens.listed([-1, 0, -1]), 0).tolist() == [False, True, False]


def test_rows_move_at_their_own_pace() -> None:
    keys = Tokens(torch.tensor([[0, 1, 2], [-1, 0, 1]]))
    needed = sliding_window(2).needed(keys, torch.tensor([[3], [2]]))
    assert needed.tolist() == [[False, False, True], [False, False, True]]


def test_any_document_may_come_again() -> None:
    tokens = Tokens.listed([0, 1, 2], [-1, -1, -1])
    assert (sliding_window(4) & SameDocument()).needed(tokens, 3).all()


def test_a_document_may_come_again() -> None:
    tokens = Tokens.packed([3, 3])
    assert (Causal() & SameDocument()).needed(tokens, 6).all()
