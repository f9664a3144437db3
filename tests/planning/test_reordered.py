"""Atoms in an order of their own: taken out of any expression, every pair is still held once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import sequences

from eyeline import attention, dense_mask, memory
from eyeline.kernels.pieces import add, pick, place
from eyeline.patterns import (
    Causal,
    Chunks,
    Dilated,
    FixedColumns,
    Full,
    Global,
    Pattern,
    PerHead,
    SameSegment,
    Strided,
    Window,
    sliding_window,
)  # fmt: skip
from eyeline.planning import Plan, Reordered, Run, pairs, plan
from eyeline.planning.peeling import both, common, negated, peel, replaced
from eyeline.testing.kernel import largest_tensor
from eyeline.testing.pattern import coverage
from eyeline.tokens import Tokens
from eyeline.tokens.ordering import Ordering

own_order = st.one_of(
    st.builds(Strided, st.integers(1, 20)),
    st.builds(Dilated, st.integers(1, 9), st.integers(0, 5), st.integers(0, 5)),
    st.integers(1, 12).flatmap(lambda s: st.builds(FixedColumns, st.just(s), st.integers(1, s))),
    st.builds(Global, st.lists(st.integers(0, 150), max_size=5)),
)
plain = st.one_of(
    st.just(Causal()), st.builds(Window, st.integers(0, 30), st.integers(0, 30)),
    st.builds(Chunks, st.integers(1, 40)), st.just(SameSegment()), st.just(Full()),
)  # fmt: skip


def _combined(inner: st.SearchStrategy[Pattern]) -> st.SearchStrategy[Pattern]:
    two = st.tuples(inner, inner)
    return st.one_of(
        two.map(lambda p: p[0] & p[1]), two.map(lambda p: p[0] | p[1]), inner.map(lambda p: ~p)
    )


expressions = st.recursive(st.one_of(own_order, plain), _combined, max_leaves=6)


@pytest.fixture
def orders_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So that atoms are taken out of short sequences too."""
    monkeypatch.setattr("eyeline.planning.parts._CALL", 0)
    monkeypatch.setattr("eyeline.planning.parts._PLACE", 0)
    memory.clear()
    yield
    memory.clear()


@given(expressions, sequences(67), st.sampled_from([4, 16, 64]))
@settings(max_examples=150, deadline=None)
def test_every_pair_is_held_once(pattern: Pattern, tokens: Tokens, tile: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("eyeline.planning.parts._CALL", 0)
        patch.setattr("eyeline.planning.parts._PLACE", 0)
        memory.clear()
        made = plan(pattern, q_tokens=tokens, k_tokens=tokens, tile=tile)
    memory.clear()
    mask = dense_mask(pattern, q_tokens=tokens, k_tokens=tokens)
    assert torch.equal(coverage(made), mask.long())
    assert pairs(pattern, q_tokens=tokens, k_tokens=tokens) == int(mask.sum())


def test_a_stride_is_one_run_over_its_residues() -> None:
    made = plan(Strided(128), 16_384)
    (part,) = made.parts
    assert isinstance(part, Reordered)
    (run,) = part.plan.parts
    assert isinstance(run, Run)
    assert (run.rows, run.columns, run.count, run.mask) == (128, 128, 128, None)


def test_an_uneven_length_changes_little() -> None:
    even, odd = (plan(Causal() & Strided(128), n) for n in (16_384, 16_411))
    assert odd.area < 1.3 * even.area
    assert _count(odd) < 12


def test_global_rows_and_columns_are_gathered() -> None:
    made = plan(Window(128, 128) | Global(range(5, 16_384, 1024)), 16_384)
    columns, rows = (part.plan for part in made.parts if isinstance(part, Reordered))
    assert columns.k_tokens.length == rows.q_tokens.length == 16
    assert columns.q_tokens.length == 16_384
    assert made.area < 1.3 * pairs(made.pattern, 16_384)


def test_fixed_columns_need_no_masks() -> None:
    made = plan(Causal() & (Chunks(128) | FixedColumns(128, 8)), 16_384)
    assert made.area < 1.1 * pairs(made.pattern, 16_384)


def test_the_cheaper_order_is_taken_and_said() -> None:
    near, far = Dilated(2, 3, 3), Dilated(64, 100, 100)
    assert not any(isinstance(part, Reordered) for part in plan(near, 4096).parts)
    made = plan(far, 16_384)
    assert any(isinstance(part, Reordered) for part in made.parts)
    assert made.rejected is not None
    assert made.rejected > made.cost
    assert f"at most {made.rejected:,}" in str(made)


@pytest.mark.parametrize(
    "pattern",
    [Causal() & Strided(1009), sliding_window(256) | Causal() & Strided(1009),
     Window(128, 128) | Global(range(7, 1_000_000, 90_000)),
     Causal() & (Chunks(1000) | FixedColumns(1000, 8)), Dilated(64, 50, 50)],
    ids=str,
)  # fmt: skip
def test_a_million_tokens_take_no_n_squared(pattern: Pattern) -> None:
    assert largest_tensor(lambda: plan(pattern, 1_000_000)) < 40_000_000


@pytest.mark.parametrize("stride", [1, 2, 64, 127, 128, 1000])
def test_pairs_of_a_stride_are_the_formula(stride: int) -> None:
    n = 100_003
    whole, rest = divmod(n, stride)
    sizes = [(whole + 1, rest), (whole, stride - rest)]
    assert pairs(Strided(stride), n) == sum(count * size**2 for size, count in sizes)
    causal = sum(count * size * (size + 1) // 2 for size, count in sizes)
    assert pairs(Causal() & Strided(stride), n) == causal


def test_taking_apart_is_an_identity() -> None:
    n, atom = 40, Strided(4)
    pattern = Causal() & (Window(3, 0) | atom & ~Chunks(9)) | ~(~atom | Causal())
    tokens = Tokens.arange(0, n)
    found = peel(pattern, tokens, tokens)
    assert found is not None
    ((view, within),) = found.within
    assert view.modulus == 4
    assert isinstance(within, Pattern)
    assert isinstance(found.without, Pattern)
    first, second = dense_mask(within, n), dense_mask(found.without, n)
    assert not (first & second).any()
    assert torch.equal(first | second, dense_mask(pattern, n))
    assert not (first & ~dense_mask(atom, n)).any()


def test_a_negated_atom_is_left_alone() -> None:
    tokens = Tokens.arange(0, 50)
    for pattern in (~Strided(5), Strided(5) | Causal() & ~Strided(5)):
        assert peel(pattern, tokens, tokens) is None


def test_what_all_heads_share_is_computed_once() -> None:
    own, near = PerHead([Window(9, 0), Window(0, 9), Full(), ~Full()]), Window(2, 2)
    assert common(own | near) == near
    assert common(Causal() & (own | near)) == Causal() & near
    assert common(own & near) is False
    assert common(~own | near) is False
    q, k, v = (torch.randn(2, h, 67, 4, dtype=torch.float64) for h in (4, 2, 2))
    for pattern in (own | near, Causal() & (own | near), ~own | near, own):
        found = attention(q, k, v, pattern, backend="tiles")
        right = attention(q, k, v, pattern, backend="reference")
        torch.testing.assert_close(found, right, rtol=0, atol=1e-12)


def test_rules_are_simplified() -> None:
    atom = Strided(3)
    assert replaced(Causal() & atom, atom, True) == Causal()
    assert replaced(Causal() & atom, atom, False) is False
    assert replaced(Causal() | atom | Window(1, 1), atom, False) == Causal() | Window(1, 1)
    assert replaced(~(Causal() | ~atom), atom, True) == ~Causal()
    assert both(True, atom) is atom
    assert negated(~atom) is atom


def test_orders_and_back() -> None:
    order = Ordering.of(torch.tensor([[4, -1, 0, 2, -1]]), 6)
    x = torch.arange(12.0).view(2, 6)
    picked = pick(x, order, empty=-1.0)
    assert picked.tolist() == [[4, -1, 0, 2, -1], [10, -1, 6, 8, -1]]
    assert place(picked, order, empty=7.0).tolist() == [
        [0, 7, 2, 7, 4, 7], [6, 7, 8, 7, 10, 7],
    ]  # fmt: skip
    total = torch.zeros(2, 6)
    add(total, order, picked)
    add(total, Ordering.of(torch.tensor([[1, 3]]), 6), torch.ones(2, 2))
    assert total.tolist() == [[0, 1, 2, 1, 4, 0], [6, 1, 8, 1, 10, 0]]


@pytest.mark.usefixtures("orders_cost_nothing")
@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_nan_in_one_slot_stays_in_its_own_rows(key_heads: int) -> None:
    """A padded place repeats nobody's numbers: NaN in slot 0 must not reach through it."""
    n, pattern = 131, Causal() & Strided(9)
    q, k, v = (torch.randn(1, h, n, 8) for h in (4, key_heads, key_heads))
    k[:, :, 0], v[:, :, 0] = torch.nan, torch.nan
    out = attention(q, k, v, pattern, backend="tiles")
    sees = dense_mask(pattern, n)[:, 0]
    assert not out[:, :, ~sees].isnan().any()


def _count(made: Plan) -> int:
    return sum(_count(p.plan) if isinstance(p, Reordered) else 1 for p in made.parts)


def test_documents_and_strides_share_a_plan() -> None:
    sizes = [100, 1, 0, 45, 300, 66]
    tokens = Tokens.packed(sizes)
    pattern = Causal() & Strided(8)
    expected = 0
    for start, stop in pairwise([sum(sizes[:i]) for i in range(len(sizes) + 1)]):
        at = torch.arange(start, stop)
        expected += int((((at[:, None] - at) % 8 == 0) & (at[:, None] >= at)).sum())
    assert pairs(pattern, q_tokens=tokens, k_tokens=tokens) == expected
