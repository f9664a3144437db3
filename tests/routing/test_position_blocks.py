"""Blocks by position and document against a loop; what they take and bring back."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eyeline import Tokens
from eyeline.errors import InvalidArgument
from eyeline.tokens import groups
from routing.sinkhorn_oracle import blocks_of


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_tokens(data: st.DataObject) -> None:
    size, rows, length = (data.draw(st.integers(low, 5)) for low in (1, 1, 0))
    people = st.tuples(st.integers(0, 2), st.integers(0, 13))
    listed = [
        [(0, -1) if data.draw(st.booleans()) else one for one in each]
        for each in data.draw(
            st.lists(st.lists(people, min_size=length, max_size=length, unique=True),
                     min_size=rows, max_size=rows)
        )
    ]  # fmt: skip
    both = [torch.tensor([[one[i] for one in row] for row in listed]) for i in (1, 0)]
    tokens = Tokens(*(x.view(rows, length).long() for x in both))
    found = groups.position_blocks(tokens, size)
    x = torch.randn(rows, 2, length, 3)
    taken, back = found.take(x), found.put_back(found.take(x))
    for row, people_of_row in enumerate(listed):
        members = blocks_of([p for _, p in people_of_row], [d for d, _ in people_of_row], size)
        named = list(zip(found.documents[row].tolist(), found.numbers[row].tolist(), strict=True))
        empty = found.count - len(members)
        assert named == [*members, *[(-1, -1)] * empty]
        due = torch.zeros(2, found.count, size, 3)
        for n, slots in enumerate(members.values()):
            for slot in slots:
                due[:, n, people_of_row[slot][1] % size] = x[row, :, slot]
        assert torch.equal(taken[row], due)
        nobody = torch.tensor([p < 0 for _, p in people_of_row], dtype=torch.bool)
        assert torch.equal(back[row], x[row].masked_fill(nobody[:, None], 0.0))


@pytest.mark.parametrize("length", [1, 6, 7, 12])
def test_a_sequence_as_it_stands_is_not_gathered(length: int) -> None:
    found = groups.position_blocks(Tokens.arange(0, length), 6)
    assert found.ordering.straight and found.count == -(-length // 6)
    x = torch.randn(2, 3, length, 5)
    assert torch.equal(found.put_back(found.take(x)), x)
    assert not groups.position_blocks(Tokens.arange(1, length + 1), 6).ordering.straight


def test_two_at_one_position() -> None:
    assert groups.position_blocks(Tokens.listed([3, 3], [0, 1]), 2).count == 2
    with pytest.raises(InvalidArgument, match="two tokens of a document stand at one position"):
        groups.position_blocks(Tokens.listed([3, 4, 3]), 2)
