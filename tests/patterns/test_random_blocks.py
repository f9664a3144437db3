"""Random: uniform, the same wherever and whenever it is asked for, never more than there is."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eyeline.errors import InvalidArgument
from eyeline.hashing import absorb, below, sample, seeded
from eyeline.patterns import Bounds, Causal, Pattern, Random, Window
from eyeline.patterns.random_blocks import Counts
from eyeline.planning import dense_mask
from eyeline.testing import check_pattern
from eyeline.tokens import Points, Tokens


def unsigned(x: Tensor) -> int:
    return int(x) % (1 << 64)


def test_the_hash_is_splitmix64() -> None:
    zero = torch.zeros((), dtype=torch.int64)
    assert unsigned(absorb(zero, 0)) == 0xE220A8397B1DCDAF
    step = zero + (0x9E3779B97F4A7C15 - (1 << 64))
    assert unsigned(absorb(step, 0)) == 0x6E789E6AA1B965F4


def test_numbers_below_an_end_are_uniform() -> None:
    drawn = below(absorb(torch.arange(70_000), 5), 7).bincount(minlength=7)
    assert len(drawn) == 7
    assert (drawn - 10_000).abs().max() < 5 * math.sqrt(10_000)


def test_every_set_is_as_likely() -> None:
    states = absorb(torch.full((20_000,), seeded(3)), torch.arange(20_000))
    drawn = torch.stack(sample(states, 2, 5), 1).sort(1).values
    share = {
        pair: int((drawn == torch.tensor(pair)).all(1).sum()) for pair in combinations(range(5), 2)
    }
    assert sum(share.values()) == 20_000, "a set with an equal pair, or a number outside"
    assert max(abs(count - 2_000) for count in share.values()) < 5 * math.sqrt(2_000)


@given(st.integers(0, 9), st.integers(0, 9))
def test_samples_are_distinct(count: int, more: int) -> None:
    drawn = sample(absorb(torch.arange(11), 1), count, count + more)
    assert len(drawn) == count
    for row in zip(*(x.tolist() for x in drawn), strict=True):
        assert len(set(row)) == count
        assert all(0 <= x < count + more for x in row)


@settings(max_examples=100)
@given(st.integers(1, 30), st.integers(0, 9), st.integers(1, 40), st.integers(0, 99))
def test_points_are_counted(rows: int, each: int, population: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    columns = torch.randint(0, population, (rows, each), generator=generator)
    r0, r1 = torch.randint(0, rows + 1, (2, 30), generator=generator).sort(0).values
    c0, c1 = torch.randint(0, population + 1, (2, 30), generator=generator).sort(0).values
    counted = Counts(columns, population)(r0, r1, c0, c1).tolist()
    for number, (a, b, c, d) in enumerate(torch.stack([r0, r1, c0, c1], 1).tolist()):
        inside = columns[a:b]
        assert counted[number] == int(((inside >= c) & (inside < d)).sum())


def block_table(pattern: Pattern, length: int, size: int) -> Tensor:
    return dense_mask(pattern, length)[::size, ::size].int()


def by_hand(seed: int, layer: int, head: int, length: int, count: int, size: int) -> list[set[int]]:
    """The same draw written with Python's own integers: splitmix64 and Floyd's method."""
    whole = (1 << 64) - 1

    def absorb(state: int, value: int) -> int:
        z = ((state ^ value) + 0x9E3779B97F4A7C15) & whole
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & whole
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & whole
        return z ^ (z >> 31)

    blocks = math.ceil(length / size)
    rows = []
    for row in range(blocks):
        state = 0
        for value in (seed, length, layer, head, row):
            state = absorb(state, value)
        chosen: set[int] = set()
        for last in range(blocks - count, blocks):
            x = (absorb(state, last - blocks + count) >> 1) % (last + 1)
            chosen.add(last if x in chosen else x)
        rows.append(chosen)
    return rows


@pytest.mark.parametrize(
    "values", [(0, 0, 0, 40, 3, 4), (7, 1, 3, 22, 2, 4), (2**59, 5, 11, 97, 9, 7)], ids=str
)
def test_a_draw_is_the_same_on_every_machine(values: tuple[int, ...]) -> None:
    seed, layer, head, length, count, size = values
    pattern = Random(count, size, seed=seed, layer=layer, head=head, length=length)
    table = block_table(pattern, length, size)
    assert [set(row.nonzero()[:, 0].tolist()) for row in table] == by_hand(*values)


def test_a_draw_stays_what_it_is() -> None:
    """Trained models rest on it: this table never changes."""
    drawn = block_table(Random(2, 4, seed=7, layer=1, head=3, length=22), 22, 4)
    assert [row.nonzero()[:, 0].tolist() for row in drawn] == [
        [2, 3],
        [1, 4],
        [4, 5],
        [0, 5],
        [4, 5],
        [0, 5],
    ]


@pytest.mark.parametrize("length", [1, 7, 20, 21, 24, 97])
def test_each_block_of_queries_sees_as_many_blocks(length: int) -> None:
    pattern = Random(1 if length < 8 else 3, 7, head=0, length=length)
    mask = dense_mask(pattern, length)
    blocks = math.ceil(length / 7)
    table = block_table(pattern, length, 7)
    assert (table.sum(1) == pattern.blocks_per_row).all()
    assert table.shape == (blocks, blocks)
    whole = table.repeat_interleave(7, 0).repeat_interleave(7, 1)[:length, :length]
    assert torch.equal(mask, whole.bool()), "part of a block is seen"


def test_no_block_of_keys_is_favoured() -> None:
    seen = sum(block_table(Random(3, 1, head=head, length=50), 50, 1).sum(0) for head in range(80))
    assert (seen - 240).abs().max() < 5 * math.sqrt(240)


def test_draws_differ() -> None:
    """By seed, layer, head and length, but not by batch row."""
    settings = [
        Random(3, 4, seed=seed, layer=layer, head=head, length=length)
        for seed, layer, head, length in (
            (0, 0, 0, 97), (1, 0, 0, 97), (0, 1, 0, 97), (0, 0, 1, 97), (0, 0, 0, 98),
        )
    ]  # fmt: skip
    masks = [dense_mask(pattern, 97) for pattern in settings]
    for a, b in combinations(masks, 2):
        assert not torch.equal(a, b)
    free = Random(3, 4, length=97)
    assert free.at(0, 1) == free.at(5, 1) != free.at(0, 2)


def test_no_order_of_questions_matters() -> None:
    """Not of rows, of heads and lengths, nor of what else was drawn, here or by torch."""
    free = Random(3, 5, seed=2)
    first = dense_mask(free.at(0, 4).of_length(83), 83)
    state = torch.get_rng_state()
    for head in (9, 0, 4):
        dense_mask(free.of_length(30 + head).at(0, head), 30)
    assert torch.equal(torch.get_rng_state(), state), "torch's own generator was used"
    torch.manual_seed(99)
    assert free.of_length(83).at(0, 4) == free.at(1, 4).of_length(83)
    assert torch.equal(dense_mask(free.of_length(83).at(0, 4), 83), first)
    backwards = Tokens(torch.arange(83).flip(0))
    turned = dense_mask(free.of_length(83).at(0, 4), q_tokens=backwards, k_tokens=backwards)
    assert torch.equal(turned.flip(0, 1), first)
    last = dense_mask(free.at(0, 4), q_tokens=Tokens.arange(82, 83), k_tokens=Tokens.arange(0, 83))
    assert torch.equal(last[0], first[-1])


def test_what_is_not_fixed_is_said() -> None:
    free = Random(2, 4)
    assert free.varies_by == {"head", "length"}
    assert free.at(0, 1).varies_by == {"length"}
    assert free.of_length(9).varies_by == {"head"}
    assert not free.at(0, 1).of_length(9).varies_by
    assert free.of_length(9).of_length(30) == free.of_length(9)
    point = Points.of(torch.zeros(1, dtype=torch.int64))
    with pytest.raises(InvalidArgument, match=r"draw it for a length: pattern\.of_length\(n\)"):
        free.at(0, 0).allows(point, point)
    with pytest.raises(InvalidArgument, match=r"of_length\(n\)"):
        free.mask_mod()
    with pytest.raises(InvalidArgument, match=r"pattern\.at\(batch, head\)"):
        free.of_length(9).allows(point, point)


def test_nothing_is_known_before_it_is_drawn() -> None:
    x = torch.arange(3)
    some = Bounds.of_positions(x, x)
    for pattern in (Random(2, 4), Random(2, 4, head=1), Random(2, 4, length=8)):
        assert pattern.verdict(some, some).tolist() == [1, 1, 1]
        assert pattern.signature(some, some) is None


def test_more_blocks_than_exist_are_refused() -> None:
    free = Random(4, 8)
    with pytest.raises(
        InvalidArgument, match="blocks_per_row=4 is more than the 3 blocks of size=8 in 24"
    ):
        free.of_length(24)
    with pytest.raises(InvalidArgument, match="3 blocks"):
        free.check_length(24)
    with pytest.raises(InvalidArgument, match="3 blocks"):
        (Causal() & free).of_length(24)
    with pytest.raises(InvalidArgument, match="3 blocks"):
        dense_mask(free.at(0, 0), 24)
    assert block_table(free.at(0, 0), 25, 8).sum() == 16
    assert dense_mask(free.at(0, 0), 0).shape == (0, 0)


def test_a_draw_serves_its_length_and_shorter_ones() -> None:
    drawn = Random(2, 4, head=0, length=20)
    mask = dense_mask(drawn, 20)
    assert torch.equal(dense_mask(drawn, 13), mask[:13, :13])
    with pytest.raises(InvalidArgument, match="drawn for 20 tokens; the sequence has 21"):
        dense_mask(drawn, 21)
    beyond = Tokens.arange(0, 40)
    wide = dense_mask(drawn, q_tokens=beyond, k_tokens=beyond)
    assert torch.equal(wide[:20, :20], mask)
    assert not wide[20:].any() and not wide[:, 20:].any()


@pytest.mark.parametrize(
    "pattern",
    [
        Random(2, 16, head=0, length=131), Random(1, 7, seed=3, head=2, length=67),
        Causal() & Random(3, 5, head=1, length=67) | Window(2, 2),
        Random(3, 16, head=0, length=131), ~Random(2, 30, head=0, length=131),
    ],
    ids=str,
)  # fmt: skip
def test_everything_derived_agrees(pattern: Pattern) -> None:
    check_pattern(pattern, lengths=(1, 17, 67))


def test_a_call_says_the_length() -> None:
    """Omitted tokens, explicit ones, and rows of a batch that differ."""
    free = Random(2, 5, head=0)
    assert torch.equal(dense_mask(free, 23), dense_mask(free.of_length(23), 23))
    padded = Tokens.padded([23, 17], side="left")
    both = dense_mask(free, q_tokens=padded, k_tokens=padded)
    for row, length in enumerate((23, 17)):
        alone = dense_mask(free.of_length(length), length)
        assert torch.equal(both[row, 23 - length :, 23 - length :], alone)
        assert both[row].sum() == alone.sum()
    nobody = Tokens.padded([0, 23], side="left")
    assert not dense_mask(free, q_tokens=nobody, k_tokens=nobody)[0].any()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((-1, 4), "blocks_per_row=-1"),
        ((1.5, 4), "blocks_per_row=1.5"),
        ((1, 0), "size=0"),
        ((1, 4, -2), "seed=-2"),
        ((1, 4, 0, True), "layer=True"),
        ((1, 4, 0, 0, -1), "head=-1"),
        ((1, 4, 0, 0, 0, -1), "length=-1"),
        ((3, 4, 0, 0, 0, 8), "blocks_per_row=3 is more than the 2 blocks"),
    ],
)
def test_mistakes_are_named(values: tuple[int, ...], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        Random(*values)
