"""One ordering against loops: what stands where, what is taken, and what is put back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eyeline.errors import InvalidArgument
from eyeline.tokens import NOBODY, Tokens
from eyeline.tokens.groups import blocks_of_slots, by_document, position_blocks
from eyeline.tokens.ordering import (
    Ordering,
    neighbours,
    real_slots,
    recount,
    remembered_by_tokens,
    sorted_by,
)

LARGE = (1 << 60) - 9


@st.composite
def rows_of_tokens(draw: st.DrawFn) -> Tokens:
    """Up to three rows, with padding, documents and segments in any order, and large numbers."""
    rows, length = draw(st.integers(1, 3)), draw(st.integers(0, 9))
    shift = draw(st.sampled_from([0, LARGE]))

    def column(low: int, high: int) -> Tensor:
        entries = st.lists(st.integers(low, high), min_size=length, max_size=length)
        values = [draw(entries) for _ in range(rows)]
        return torch.tensor(values, dtype=torch.int64).view(rows, length)

    positions = column(-1, 7)
    positions = torch.where(positions < 0, NOBODY, positions + shift)
    names: dict[str, Any] = {
        name: column(-1, 3) for name in ("documents", "segments") if draw(st.booleans())
    }
    tokens = Tokens(positions, **names)
    return tokens.mapped(lambda x: x[0]) if rows == 1 and draw(st.booleans()) else tokens


def entries(tokens: Tokens) -> list[list[dict[str, int]]]:
    """What is known of the real slots of each row, in the order of the slots."""
    found = []
    for row in range(tokens.batch if tokens.batch is not None else 1):
        points = tokens.row(row).at(torch.arange(tokens.length))
        listed = zip(*(x.tolist() for x in points), strict=True)
        found.append(
            [
                {"slot": slot, "positions": p, "documents": d, "segments": s}
                for slot, (p, d, s) in enumerate(listed)
                if p != NOBODY
            ]
        )
    return found


@settings(max_examples=150, deadline=None)
@given(rows_of_tokens(), st.permutations(["positions", "documents", "segments"]), st.integers(1, 3))
def test_sorted_by(tokens: Tokens, names: list[str], count: int) -> None:
    names = names[:count]
    order, right = sorted_by(tokens, *names), entries(tokens)
    most = max(map(len, right))
    for row, each in enumerate(right):
        ranked = sorted(each, key=lambda one: [one[name] for name in names])
        slots = [one["slot"] for one in ranked]
        assert order.slots[row].tolist() == slots + [NOBODY] * (most - len(slots))
        for slot in range(tokens.length):
            place = slots.index(slot) if slot in slots else NOBODY
            assert int(order.places[row, slot]) == place


@settings(max_examples=100, deadline=None)
@given(rows_of_tokens(), st.sampled_from([1, 2]))
def test_take_and_put_back(tokens: Tokens, axis: int) -> None:
    """Padding holds true zeros, also where the slot held NaN, and gives no gradient."""
    order = sorted_by(tokens, "documents", "positions")
    rows = tokens.batch if tokens.batch is not None else 2
    real = (torch.atleast_2d(tokens.positions) != NOBODY).expand(rows, -1)
    x = torch.randn(rows, 2, tokens.length, 3).masked_fill(~real[:, None, :, None], torch.nan)
    x = x.movedim(2, axis).requires_grad_()
    taken = order.take(x, axis)
    assert taken.shape[axis] == order.slots.shape[1] and taken.isfinite().all()
    back = order.put_back(taken, axis)
    own = real.view(rows, *[tokens.length if i == axis else 1 for i in range(1, 4)])
    assert torch.equal(back, x.masked_fill(~own, 0.0))
    back.sum().backward()
    assert x.grad is not None and torch.equal(x.grad, own.expand_as(x).float())


def test_a_sequence_as_it_stands_is_not_copied() -> None:
    order = sorted_by(Tokens.packed([3, 0, 4]), "documents", "positions")
    x = torch.randn(2, 7, 3)
    assert order.straight and order.take(x, 1) is x and order.put_back(x, 1) is x
    assert not sorted_by(Tokens.listed([1, 0]), "positions").straight


@settings(max_examples=150, deadline=None)
@given(rows_of_tokens(), st.integers(-3, 3))
def test_neighbours(tokens: Tokens, offset: int) -> None:
    order = neighbours(tokens, offset)
    for row, each in enumerate(entries(tokens)):
        for one in each:
            met = [
                other["slot"] for other in each
                if other["documents"] == one["documents"]
                and other["positions"] == one["positions"] + offset
            ]  # fmt: skip
            slot = int(order.slots[row, one["slot"]])
            assert slot == (met[0] if met else NOBODY)


@settings(max_examples=150, deadline=None)
@given(rows_of_tokens(), st.data())
def test_recounted_positions(tokens: Tokens, data: st.DataObject) -> None:
    """How many keys of its document stand before a token."""
    count = data.draw(st.integers(0, tokens.length))
    q = tokens.last(count)
    ranks = recount(q, tokens)
    for row, each in enumerate(entries(tokens)):
        for side, shift in ((ranks.query, tokens.length - count), (ranks.key, 0)):
            right = [NOBODY] * (tokens.length - shift)
            for one in each:
                before = sum(
                    other["documents"] == one["documents"]
                    and other["positions"] < one["positions"] for other in each
                )  # fmt: skip
                if one["slot"] >= shift:
                    right[one["slot"] - shift] = before
            assert torch.atleast_2d(side)[row].tolist() == right


@settings(max_examples=100, deadline=None)
@given(rows_of_tokens(), st.integers(1, 4))
def test_documents_of_a_row(tokens: Tokens, size: int) -> None:
    found = by_document(tokens)
    for row, each in enumerate(entries(tokens)):
        names = sorted({one["documents"] for one in each})
        sizes = [sum(one["documents"] == name for one in each) for name in names]
        more = found.count - len(names)
        assert found.sizes[row].tolist() == sizes + [0] * more
        assert found.names[row, : len(names)].tolist() == names
        values = torch.arange(10, 10 + found.count).expand(len(found.sizes), -1)
        if names:
            by_slot = found.by_slot(values)[row]
            assert all(int(by_slot[x["slot"]]) == 10 + names.index(x["documents"]) for x in each)
        chunked = found.chunked(size)[row]
        for place, rank in enumerate(chunked.tolist()):
            if place % size and rank != NOBODY and chunked[place - 1] != NOBODY:
                own = found.number[row, [int(chunked[place - 1]), rank]]
                assert rank == int(chunked[place - 1]) + 1 and own[0] == own[1]


def test_blocks_of_slots_are_those_of_default_tokens() -> None:
    for length, size in ((1, 4), (7, 3), (12, 6)):
        one, other = blocks_of_slots(length, size), position_blocks(Tokens.arange(0, length), size)
        x = torch.randn(2, 3, length, 5)
        assert torch.equal(one.take(x), other.take(x)) and torch.equal(one.real, other.real)
        assert one.tokens.equals(other.tokens) and one.full == other.full
        assert torch.equal(one.put_back(one.take(x)), x)


def test_two_slots_at_one_place_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="two tokens of a document stand at one position"):
        Ordering.placed(torch.tensor([[0, 2, 0]]), 3)


def test_real_slots() -> None:
    assert real_slots(Tokens.arange(0, 3)) is None
    real = real_slots(Tokens.padded([1, 2]))
    assert real is not None and real.tolist() == [[False, True], [True, True]]


def test_what_inference_remembers_serves_training() -> None:
    tokens = Tokens.listed([3, -1, 1, 2], [1, 0, 0, 1])
    with torch.inference_mode():
        order, blocks = sorted_by(tokens, "positions"), position_blocks(tokens, 2)
        beside = neighbours(tokens, 1)
    assert sorted_by(tokens, "positions") is order and position_blocks(tokens, 2) is blocks
    for one in (order, blocks.ordering, beside):
        x = torch.randn(2, 4, 3, requires_grad=True)
        one.put_back(one.take(x, 1), 1).square().sum().backward()
        assert x.grad is not None and x.grad.any()


def test_what_is_remembered_is_made_once() -> None:
    made = []

    @remembered_by_tokens
    def count(tokens: Tokens) -> int:
        made.append(tokens)
        return len(made)

    tokens = Tokens.arange(0, 2)
    assert count(tokens) == count(tokens) == 1 and count(Tokens.arange(0, 2)) == 2
