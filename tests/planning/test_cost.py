"""cost: exact counts, against brute force, closed forms, and torch's own counter of FLOPs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eyeline.errors import InvalidArgument
from eyeline.patterns import (
    Causal,
    Chunks,
    Explicit,
    Full,
    Pattern,
    PerHead,
    Predicate,
    Random,
    sliding_window,
    streaming,
)
from eyeline.planning import Cost, cost, dense_mask, pairs, plan
from eyeline.planning.dense import settled
from eyeline.tokens import Tokens
from strategies import HEADS, sequences, varying_patterns

E, EV = 5, 3


def test_a_window_in_numbers() -> None:
    # 3 + 2 + 1 pairs before the window is full, then 4 a row.
    assert cost(sliding_window(4), 13, heads=2, head_dim=E, value_dim=EV) == Cost(
        pairs=2 * 46,
        computed=2 * plan(sliding_window(4), 13).area,
        dense_pairs=2 * 169,
        flops=2 * 46 * 16,
        dense_flops=2 * 169 * 16,
        # q 13·5, k 13·5, v 13·3, out 13·3 and lse 13, four bytes each.
        bytes=2 * 4 * 13 * 17,
        steps=1,
        computed_flops=2 * plan(sliding_window(4), 13).area * 16,
    )


def test_backward_is_two_and_a_half_times_forward() -> None:
    once, both = (cost(Causal(), 61, backward=b) for b in (False, True))
    assert both.flops * 2 == once.flops * 7
    assert (both.pairs, both.computed, both.steps) == (once.pairs, once.computed, once.steps)
    uneven = [cost(Causal(), 61, head_dim=E, value_dim=EV, backward=b) for b in (False, True)]
    assert uneven[1].flops - uneven[0].flops == once.pairs * 2 * (3 * E + 2 * EV)


def test_bytes_are_the_tensors_of_a_call() -> None:
    heads, length, keys = 3, 7, 11
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        q, out = (torch.empty(heads, length, n, dtype=dtype) for n in (E, EV))
        k, v = (torch.empty(heads, keys, n, dtype=dtype) for n in (E, EV))
        lse = torch.empty(heads, length, dtype=torch.promote_types(dtype, torch.float32))
        forward = sum(x.nbytes for x in (q, k, v, out, lse))
        backward = forward + sum(x.nbytes for x in (out, q, k, v))
        sizes = {"heads": heads, "head_dim": E, "value_dim": EV, "dtype": dtype}
        assert cost(Full(), length, keys, **sizes).bytes == forward
        assert cost(Full(), length, keys, backward=True, **sizes).bytes == forward + backward


def test_dense_flops_are_torchs() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    q, k = torch.randn(1, 2, 7, E, requires_grad=True), torch.randn(1, 2, 11, E, requires_grad=True)
    v = torch.randn(1, 2, 11, EV, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        out = (q @ k.mT).softmax(-1) @ v
    sizes = {"heads": 2, "head_dim": E, "value_dim": EV}
    forward = cost(Full(), 7, 11, **sizes).dense_flops
    assert counter.get_total_flops() == forward
    with FlopCounterMode(display=False) as counter:
        out.sum().backward()
    # The scores are computed again rather than kept.
    again = 2 * 2 * 7 * 11 * E
    both = cost(Full(), 7, 11, backward=True, **sizes).dense_flops
    assert counter.get_total_flops() + again == both - forward


@settings(max_examples=60, deadline=None)
@given(st.data(), varying_patterns, st.integers(1, 64), st.booleans())
def test_counts_are_those_of_the_mask(
    data: st.DataObject, pattern: Pattern, length: int, backward: bool
) -> None:
    tokens = data.draw(sequences(length))
    masks = dense_mask(pattern, q_tokens=tokens, k_tokens=tokens, batch=1, heads=HEADS)
    found = cost(
        pattern, q_tokens=tokens, k_tokens=tokens, heads=HEADS, head_dim=E, value_dim=EV,
        backward=backward,
    )  # fmt: skip
    right = int(masks.sum())
    assert found.pairs == right
    own = (pattern.at(0, head) for head in range(HEADS))
    plans = [plan(settled(rule, tokens, tokens), q_tokens=tokens, k_tokens=tokens) for rule in own]
    assert right <= found.computed == sum(each.area for each in plans)
    per_pair = 2 * (E + EV) + (2 * (3 * E + 2 * EV) if backward else 0)
    assert (found.flops, found.dense_flops) == (right * per_pair, HEADS * length**2 * per_pair)
    assert found.share == right / (HEADS * length**2)


def test_heads_are_counted_one_by_one() -> None:
    each = PerHead([Causal(), sliding_window(4), Causal()])
    assert cost(each, 31, heads=3).pairs == 2 * pairs(Causal(), 31) + pairs(sliding_window(4), 31)
    drawn = Random(2, 8, seed=3)
    assert cost(drawn, 64, heads=5).pairs == 5 * 64 * 16
    mask = torch.rand(1, 2, 13, 13, generator=torch.Generator().manual_seed(0)) < 0.5
    assert cost(Explicit(mask), 13, heads=2).pairs == int(mask.sum())


def test_nothing_is_visited_pair_by_pair() -> None:
    found = cost(streaming(256, 4), 1_000_000)
    assert found.pairs == pairs(streaming(256, 4), 1_000_000)
    assert found.pairs <= found.computed < 2 * found.pairs
    assert found.dense_pairs == 10**12


def test_nothing_costs_nothing() -> None:
    empty = cost(Full(), 0)
    assert (empty.pairs, empty.computed, empty.flops, empty.bytes, empty.share) == (0, 0, 0, 0, 0.0)


def test_it_reads_well() -> None:
    assert str(cost(Chunks(64), 1024, heads=8)).splitlines() == [
        "524,288 pairs, 6.250% of 8,388,608; 524,288 computed",
        "134 MFLOP; dense attention: 2.15 GFLOP",
        "8.42 MB read and written; 1 sequential step",
    ]


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"heads": 0}, "heads=0"),
        ({"heads": True}, "heads=True"),
        ({"head_dim": 0}, "head_dim=0"),
        ({"value_dim": 2.5}, "value_dim=2.5"),
        ({"dtype": torch.int64}, "int64"),
    ],
)
def test_sizes_that_cannot_be_are_named(sizes: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        cost(Full(), 7, **sizes)  # type: ignore[arg-type]


def test_what_is_not_one_sequence_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"batch row: choose one with pattern.at"):
        cost(Predicate(lambda b, h, q, k: q >= k), 7)
    with pytest.raises(InvalidArgument, match=r"row\(b\)"):
        cost(Full(), q_tokens=Tokens.padded([3, 5]), k_tokens=Tokens.padded([3, 5]))
    with pytest.raises(InvalidArgument, match=r"2 patterns.*3 query"):
        cost(PerHead([Full(), Causal()]), 7, heads=3)
