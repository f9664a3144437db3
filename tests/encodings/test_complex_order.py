"""Complex-order embedding against complex numbers of Python, word by word."""

from __future__ import annotations

import cmath

import pytest
import torch
from torch import Tensor

from eyeline.encodings import ComplexOrder
from eyeline.errors import InvalidArgument

IDS = torch.tensor([[4, 0, 4], [2, 1, 3]])
POSITIONS = torch.tensor([[0, 7, 1_000_003], [-1, 5, 6]])


def module() -> ComplexOrder:
    torch.manual_seed(0)
    out = ComplexOrder(5, 3).double()
    torch.nn.init.normal_(out.frequency)
    return out.requires_grad_(False)


def as_complex(parts: tuple[Tensor, Tensor]) -> Tensor:
    return torch.complex(*parts)


def test_each_word_at_each_position() -> None:
    words = module()
    got = words(IDS, POSITIONS)
    assert got.shape == (2, 3, 6)
    for row in range(2):
        for slot in range(3):
            word, position = int(IDS[row, slot]), int(POSITIONS[row, slot])
            for k in range(3):
                r, w, t = (
                    float(table[word, k])
                    for table in (words.amplitude, words.frequency, words.phase)
                )
                want = r * cmath.exp(1j * (w * position + t)) if position >= 0 else 0j
                assert float(got[row, slot, k]) == pytest.approx(want.real, abs=1e-9)
                assert float(got[row, slot, 3 + k]) == pytest.approx(want.imag, abs=1e-9)


@pytest.mark.parametrize("distance", [1, 97, -3])
def test_any_position_follows_from_one(distance: int) -> None:
    words, ids = module(), torch.arange(5)
    here = as_complex(words.parts(ids, torch.tensor(11)))
    there = as_complex(words.parts(ids, torch.tensor(11 + distance)))
    turn = as_complex(words.turn(ids, torch.tensor(distance)))
    torch.testing.assert_close(here * turn, there, rtol=0, atol=1e-12)
    assert (here - there).abs().max() > 0.1


def test_positions_shared_by_the_rows_of_a_batch() -> None:
    words, positions = module(), torch.arange(3)
    assert torch.equal(words(IDS, positions), words(IDS, positions.expand(2, 3)))


def test_gradients_of_all_three_tables() -> None:
    words = module()
    ids, positions = torch.tensor([4, 0, 1]), torch.tensor([2, 5, -1])

    def call(amplitude: Tensor, frequency: Tensor, phase: Tensor) -> Tensor:
        tables = {"amplitude": amplitude, "frequency": frequency, "phase": phase}
        return torch.func.functional_call(words, tables, (ids, positions))

    tables = [p.clone().requires_grad_() for p in words.parameters()]
    assert torch.autograd.gradcheck(call, tables)
    call(*tables).sum().backward()
    for table in tables:
        assert table.grad is not None
        assert table.grad.any(1).tolist() == [True, False, False, False, True]


def test_far_positions_keep_their_precision_in_float32() -> None:
    words = module().float()
    far = torch.tensor(1_000_003)
    exact = ComplexOrder(5, 3).double()
    exact.load_state_dict(words.state_dict())
    torch.testing.assert_close(
        words(torch.arange(5), far).double(), exact(torch.arange(5), far), rtol=0, atol=1e-6
    )
    assert words(torch.arange(5), far).dtype == torch.float32


def test_starting_values() -> None:
    words = ComplexOrder(89, 97)
    assert words.frequency[0].tolist() == pytest.approx([10000 ** (-k / 97) for k in range(97)])
    assert torch.equal(words.frequency[0], words.frequency[88])
    assert float(words.amplitude.detach().std()) == pytest.approx(1.0, abs=0.1)
    assert float(words.phase.detach().min()) >= 0 and float(words.phase.detach().max()) < 6.2832


def test_graphs_hold_no_break() -> None:
    words = module()
    whole = torch.compile(words, fullgraph=True, backend="eager")
    torch.testing.assert_close(whole(IDS, POSITIONS), words(IDS, POSITIONS))


def test_what_cannot_be_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgument, match="complex order vocabulary=0"):
        ComplexOrder(0, 3)
    with pytest.raises(InvalidArgument, match="complex order width=-1"):
        ComplexOrder(5, -1)
    with pytest.raises(InvalidArgument, match="id 5: they go from 0 to 4; the vocabulary has 5"):
        module()(torch.tensor([5]), torch.tensor([0]))
    with pytest.raises(InvalidArgument, match="ids must be int64"):
        module()(torch.ones(2), torch.arange(2))
    with pytest.raises(InvalidArgument, match="positions must be int64"):
        module()(torch.arange(2), torch.ones(2))
