"""Tokens say where each slot stands; mistakes in them are found when they are made."""

from __future__ import annotations

import pytest
import torch

from eyeline.errors import InvalidArgument
from eyeline.patterns import Causal, SameSegment, Sinks
from eyeline.planning import dense_mask
from eyeline.tokens import Tokens, default_tokens, slots


def test_padded_on_the_left() -> None:
    tokens = Tokens.padded([3, 0, 1], side="left")
    assert tokens.positions.tolist() == [[0, 1, 2], [-1, -1, -1], [-1, -1, 0]]


def test_padded_on_the_right_to_a_length() -> None:
    tokens = Tokens.padded([2, 3], side="right", length=5)
    assert tokens.positions.tolist() == [[0, 1, -1, -1, -1], [0, 1, 2, -1, -1]]


def test_packed_begins_anew_in_each_document_and_leaves_a_rest() -> None:
    tokens = Tokens.packed([2, 0, 3], length=7)
    assert tokens.positions.tolist() == [0, 1, 0, 1, 2, -1, -1]
    assert tokens.documents is not None
    assert tokens.documents.tolist() == [0, 0, 2, 2, 2, -1, -1]


def test_the_builders_of_packed_tokens_agree() -> None:
    packed = Tokens.packed([2, 0, 3], length=7)
    numbers = [0, 0, 2, 2, 2, -1, -1]
    for same in (
        Tokens.cu_seqlens([0, 2, 2, 5], length=7),
        Tokens.cu_seqlens(torch.tensor([0, 2, 2, 5], dtype=torch.int32), length=7),
        Tokens.numbered(numbers),
        Tokens.packed([[2, 0, 3], []], length=7).row(0),
        Tokens.numbered(torch.tensor([[0] * 7, numbers])).row(1),
    ):
        assert packed.equals(same)


def test_a_batch_of_packings() -> None:
    tokens = Tokens.packed([[2, 3], [1], []])
    assert tokens.positions.tolist() == [[0, 1, 0, 1, 2], [0, -1, -1, -1, -1], [-1] * 5]
    assert tokens.documents is not None
    assert tokens.documents.tolist() == [[0, 0, 1, 1, 1], [0, -1, -1, -1, -1], [-1] * 5]


def test_documents_that_are_mixed_count_their_own_tokens() -> None:
    tokens = Tokens.numbered([7, 3, 7, -1, 3, 7])
    assert tokens.positions.tolist() == [0, 0, 1, -1, 1, 2]


def test_masks_count_from_the_first_real_token() -> None:
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 1, 0, 1]]).bool()
    right = [[-1, -1, 0, 1, 2], [0, 1, 2, -1, -1], [0, -1, 1, -1, 2]]
    assert Tokens.masked(mask).positions.tolist() == right
    assert Tokens.masked(mask[2]).positions.tolist() == right[2]
    assert Tokens.masked(mask[:1]).equals(Tokens.padded([3], length=5))


def test_what_is_named_goes_along() -> None:
    """Every way to cut, join or pick slots keeps all four columns."""
    columns = [torch.tensor([[0, 0, 1], [0, 1, 2]]) + shift for shift in (0, 10, 20, 30)]
    tokens = Tokens(*columns)
    cut = [column[:, 1:] for column in columns]
    assert tokens.last(2).equals(Tokens(*cut))
    assert tokens.row(1).equals(Tokens(*(column[1] for column in columns)))
    assert slots.first(tokens, 2).equals(Tokens(*(column[:, :2] for column in columns)))
    assert slots.join(slots.first(tokens, 1), tokens.last(2)).equals(tokens)
    assert slots.exchanged(tokens, torch.tensor([1, 0])).equals(
        Tokens(*(c.flip(0) for c in columns))
    )
    picked = slots.take(tokens, torch.tensor([[2, 0], [1, 1]]))
    assert picked.encoding_positions is not None and picked.segments is not None
    assert picked.encoding_positions.tolist() == [[31, 30], [31, 31]]
    assert picked.segments.tolist() == [[21, 20], [21, 21]]
    none = slots.only(tokens, torch.zeros(2, 3, dtype=torch.bool))
    assert none.positions.eq(-1).all() and none.documents is not None
    assert torch.equal(none.documents, columns[1])
    assert tokens.encoded is columns[3] and tokens.last(3) is tokens


def test_two_tokens_may_stand_at_one_position() -> None:
    """A tree of drafts: two continuations of a token, told apart by their branch."""
    tree = Tokens.listed([0, 1, 2, 2, 3, 3], segments=[0, 0, 1, 2, 1, 2])
    trunk = Sinks(2)
    mask = dense_mask(Causal() & (SameSegment() | trunk), q_tokens=tree, k_tokens=tree)
    right = "100000 110000 111000 110100 111010 110101"
    assert ["".join(map(str, row)) for row in mask.int().tolist()] == right.split()


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
        (lambda: Tokens.packed([[3], [1]], length=2), "length=2"),
        (lambda: Tokens.cu_seqlens([1, 3]), "begin at 0"),
        (lambda: Tokens.cu_seqlens([0, 3, 2]), "never go down"),
        (lambda: Tokens.masked(torch.ones(3)), "mask.bool()"),
        (lambda: Tokens(torch.zeros(3).long(), segments=torch.zeros(2).long()), "segments"),
        (lambda: Tokens(torch.zeros(3).long(), encoding_positions=torch.zeros(3)), "encoding_pos"),
    ],
)
def test_mistakes_are_named(make: object, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        make()  # type: ignore[operator]
