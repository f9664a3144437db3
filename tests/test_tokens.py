"""Tokens say where each slot stands; mistakes in them are found when they are made."""

from __future__ import annotations

import pytest
import torch

from eyeline.errors import InvalidArgument
from eyeline.tokens import Tokens, default_tokens


def test_padded_on_the_left() -> None:
    tokens = Tokens.padded([3, 0, 1], side="left")
    assert tokens.positions.tolist() == [[0, 1, 2], [-1, -1, -1], [-1, -1, 0]]


def test_padded_on_the_right_to_a_length() -> None:
    tokens = Tokens.padded([2, 3], side="right", length=5)
    assert tokens.positions.tolist() == [[0, 1, -1, -1, -1], [0, 1, 2, -1, -1]]


def test_packed_runs_on_and_leaves_a_rest() -> None:
    tokens = Tokens.packed([2, 0, 3], length=7)
    assert tokens.positions.tolist() == [0, 1, 2, 3, 4, -1, -1]
    assert tokens.documents is not None
    assert tokens.documents.tolist() == [0, 0, 2, 2, 2, -1, -1]


def test_omitted_queries_are_the_last_keys() -> None:
    q, k = default_tokens(2, 5)
    assert q.positions.tolist() == [3, 4]
    assert k.positions.tolist() == [0, 1, 2, 3, 4]
    assert default_tokens(2, 5)[0] is q, "equal defaults must be one object: plans remember it"


def test_equal_rows_are_one_object() -> None:
    tokens = Tokens(torch.tensor([[0, 1], [1, 2], [0, 1]]))
    assert tokens.row(0) is tokens.row(2)
    assert tokens.row(1).positions.tolist() == [1, 2]


def test_rows_of_no_slots() -> None:
    assert Tokens(torch.zeros(3, 0, dtype=torch.int64)).row(2).length == 0


def test_last_slots() -> None:
    tokens = Tokens.listed([4, 5, 6], [0, 1, 1]).last(2)
    assert tokens.positions.tolist() == [5, 6]
    assert tokens.documents is not None
    assert tokens.documents.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Tokens(torch.zeros(3)), "float32"),
        (lambda: Tokens(torch.zeros(2, 2, 2, dtype=torch.int64)), r"\(2, 2, 2\)"),
        (lambda: Tokens.listed([0, -2]), "-2"),
        (lambda: Tokens.listed([0, 2**60]), "2\\^60"),
        (lambda: Tokens.arange(0, 5).last(9), "5 slots, not 9"),
        (lambda: Tokens.listed([0, 1], [0]), "documents"),
        (lambda: Tokens.padded([3], side="middle"), "middle"),
        (lambda: Tokens.padded([3], length=2), "length=2"),
        (lambda: Tokens.packed([3], length=2), "length=2"),
        (lambda: Tokens.packed([-1]), "-1"),
    ],
)
def test_mistakes_are_named(make: object, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        make()  # type: ignore[operator]
