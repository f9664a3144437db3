"""Bytes as ids: there and back, one at a time, and the four words that are no text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyeline.errors import InvalidArgument, NotSupported
from eyeline.tokenizer import ByteTokenizer

BYTES = ByteTokenizer()


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_there_and_back(text: str) -> None:
    ids = BYTES.encode(text, special=False)
    assert bytes(ids).decode() == text == BYTES.decode(ids)


@given(st.lists(st.integers(0, 259)))
def test_one_at_a_time_gives_the_same_text(ids: list[int]) -> None:
    stream = BYTES.stream()
    pieces = [stream.push(i) for i in ids]
    assert "".join([*pieces, stream.flush()]) == BYTES.decode(ids)
    assert stream.flush() == ""


def test_half_a_character_is_held_back() -> None:
    stream = BYTES.stream()
    assert [stream.push(i) for i in "aé".encode()] == ["a", "", "é"]
    assert (stream.push(0xC3), stream.flush(), stream.push(65)) == ("", "�", "A")


def test_control_words() -> None:
    assert (BYTES.bos_id, BYTES.eos_id, BYTES.pad_id, BYTES.mask_id) == (256, 257, 258, 259)
    assert BYTES.eos_ids == {257} and BYTES.vocabulary_size == 260
    assert BYTES.encode("a<mask>b<eos><x>") == [97, 259, 98, 257, *b"<x>"]
    assert BYTES.encode("<mask>", special=False) == list(b"<mask>")
    assert BYTES.decode([97, 259, 98]) == "ab"
    assert BYTES.decode([256, 97, 259, 257, 258], special=True) == "<bos>a<mask><eos><pad>"


def test_bytes_that_are_no_text() -> None:
    assert BYTES.decode([0xFF, 97]) == "�a"


@pytest.mark.parametrize("index", [-1, 260])
def test_ids_that_do_not_exist(index: int) -> None:
    with pytest.raises(InvalidArgument, match=f"{index} is none of the ids 0 to 259"):
        BYTES.decode([97, index])


def test_what_cannot_be_encoded() -> None:
    with pytest.raises(InvalidArgument, match="surrogate"):
        BYTES.encode("\ud800")
    with pytest.raises(InvalidArgument, match="not bytes"):
        BYTES.encode(b"a")  # type: ignore[arg-type]


def test_no_chat() -> None:
    with pytest.raises(NotSupported, match="no chat template"):
        BYTES.chat([{"role": "user", "content": "hello"}])


def test_all_are_one() -> None:
    assert ByteTokenizer() == BYTES and {BYTES, ByteTokenizer()} == {BYTES}
