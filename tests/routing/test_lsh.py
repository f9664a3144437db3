"""LSH routes against the paper's rules written out token by token, and hashing against argmax."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from eyeline import Full, Tokens
from eyeline.errors import InvalidArgument
from eyeline.mechanisms.routed.buckets import Hashing, factors, factors_about, hashed, rotations
from eyeline.tokens import NOBODY
from eyeline.tokens.groups import by_document
from routing.route_oracle import meetings

B, H, A, E = 2, 3, 2, 5
BY = pytest.mark.parametrize("by", ["chunks", "buckets"])


def drawn(length: int, seed: int = 0, batch: int = B) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, H, length, E, generator=generator, dtype=torch.float64)


def bucket_of(x: Tensor, own: tuple[int, ...], head: int, lane: int, columns: list[int]) -> int:
    """argmax [xR; -xR] for each factor, as one number; columns: how many rotations have."""
    number = 0
    for place, factor in enumerate(own):
        turn = rotations(7, H, A, place, columns[place], E)[head, lane, : factor // 2].double()
        digit = torch.cat((turn @ x, -(turn @ x))).argmax() if factor > 1 else 0
        number = number * factor + int(digit)
    return number


def by_the_paper(
    x: Tensor, hashing: Hashing, tokens: Tokens, queries: int, *, ahead: bool
) -> Tensor:
    """How often each query of the last slots meets each slot."""
    length = x.shape[2]
    count = torch.zeros(len(x), H, queries, length)
    for b in range(len(x)):
        row = tokens.row(b)
        position = row.positions.tolist()
        owner = [0] * length if row.documents is None else row.documents.tolist()
        real = [i for i in range(length) if position[i] != NOBODY]
        documents = [[i for i in real if owner[i] == d] for d in sorted({owner[i] for i in real})]
        for h in range(H):
            for lane in range(A):
                for slots in documents:
                    for i, j in pairs(x[b, h], slots, hashing, position, h, lane, ahead=ahead):
                        if i >= length - queries:
                            count[b, h, i - (length - queries), j] += 1
    return count


def pairs(
    x: Tensor, slots: list[int], hashing: Hashing, position: list[int], h: int, lane: int,
    *, ahead: bool,
) -> list[tuple[int, int]]:  # fmt: skip
    own = hashing.factors(len(slots))
    columns = [max(f // 2, 1) for f in own]
    buckets = {i: bucket_of(x[i], own, h, lane, columns) for i in slots}
    size = hashing.bucket_size
    if hashing.by == "chunks":
        line = sorted(slots, key=lambda i: (buckets[i], position[i]))
        chunks = [line[start : start + size] for start in range(0, len(line), size)]
        return [
            (i, j) for n, chunk in enumerate(chunks) for i in chunk
            for j in (chunks[n - 1] if n else []) + chunk if i != j
        ]  # fmt: skip
    found = []
    for i in slots:
        same = [j for j in slots if buckets[j] == buckets[i] and j != i]
        before = sorted((j for j in same if position[j] < position[i]), key=lambda j: position[j])
        after = sorted((j for j in same if position[j] > position[i]), key=lambda j: position[j])
        found += [(i, j) for j in before[-size:] + (after[:size] if ahead else [])]
    return found


def check(hashing: Hashing, x: Tensor, tokens: Tokens, queries: int, *, ahead: bool) -> None:
    route = hashing.route(hashing.buckets_of(x, tokens), queries, tokens, ahead=ahead)
    found = meetings(route, Full(), tokens.last(queries), tokens)
    assert torch.equal(found, by_the_paper(x, hashing, tokens, queries, ahead=ahead))


@BY
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("length", [1, 7, 8, 37])
@pytest.mark.parametrize("buckets", [None, 1, 8])
def test_who_meets_whom(by: str, ahead: bool, length: int, buckets: int | None) -> None:
    hashing = Hashing(7, A, by, buckets, seed=7)  # type: ignore[arg-type]
    check(hashing, drawn(length), Tokens.arange(0, length), length, ahead=ahead)


@BY
@pytest.mark.parametrize("buckets", [None, 4])
def test_documents_of_many_sizes(by: str, buckets: int | None) -> None:
    """Each has as many buckets as its own length asks for, in every row of a batch."""
    positions = torch.arange(31).repeat(B, 1)
    positions[1, 4:9] = NOBODY
    owners = torch.tensor([[*[2] * 3, *[5] * 19, *[1] * 9], [*[0] * 11, *[9] * 20]])
    hashing = Hashing(2, A, by, buckets, seed=7)  # type: ignore[arg-type]
    check(hashing, drawn(31), Tokens(positions, owners), 31, ahead=True)


@settings(max_examples=30)
@given(st.data())
def test_any_tokens(data: st.DataObject) -> None:
    by = data.draw(st.sampled_from(["chunks", "buckets"]))
    hashing = Hashing(data.draw(st.integers(1, 9)), A, by, data.draw(st.sampled_from([None, 4])), 7)  # type: ignore[arg-type]
    real = data.draw(st.integers(0, 19))
    pads = data.draw(st.integers(0 if real else 1, 4))
    rows = [[*torch.randperm(31)[:real].tolist(), *[NOBODY] * pads] for _ in range(B)]
    rows = [data.draw(st.permutations(row)) for row in rows]
    owners = None
    if data.draw(st.booleans()):
        owners = torch.tensor([[data.draw(st.integers(0, 3)) for _ in row] for row in rows])
    tokens = Tokens(torch.tensor(rows), owners)
    queries = data.draw(st.integers(0, real + pads))
    ahead = data.draw(st.booleans())
    check(hashing, drawn(real + pads, seed=real), tokens, queries, ahead=ahead)


@pytest.mark.parametrize("own", [(2, 1), (6, 1), (4, 6), (1, 1), (8, 8)])
def test_buckets_are_argmax(own: tuple[int, int]) -> None:
    x = drawn(41)
    found = hashed(x, own, rounds=A, seed=7)
    columns = [max(f // 2, 1) for f in own]
    for b, h, lane, i in torch.cartesian_prod(*(torch.arange(n) for n in found.shape)).tolist():
        assert found[b, h, lane, i] == bucket_of(x[b, h, i], own, h, lane, columns)
    assert torch.equal(found, hashed(3.0 * x, own, rounds=A, seed=7))  # lengths do not matter


def test_close_calls_are_decided_in_float64() -> None:
    """A step and the whole text must find the same bucket, however products are rounded."""
    one, two = rotations(7, H, A, 0, 2, E)[0, 0].double()
    apart = one - two
    x = drawn(500)[0, 0]
    x = x - (x @ apart / apart.dot(apart))[:, None] * apart
    x = x * (one @ x.T).sign()[:, None]  # both are equal now, and positive
    for side, bucket in ((1e-10, 0), (-1e-10, 1)):
        near = (x + side * apart).expand(1, H, -1, -1)
        assert (hashed(near, (4,), rounds=A, seed=7)[0, 0, 0] == bucket).all()


def test_hashing_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    x = drawn(41)
    whole = hashed(x, (4, 6), rounds=A, seed=7)
    monkeypatch.setattr("eyeline.budgets.budgets.hashed", 3000)
    assert torch.equal(whole, hashed(x, (4, 6), rounds=A, seed=7))


def test_rotations_are_normal_and_each_its_own() -> None:
    one = rotations(3, 4, 5, 0, 16, 64)
    assert one.dtype == torch.float32 and one.shape == (4, 5, 16, 64)
    assert abs(float(one.mean())) < 0.02 and abs(float(one.std()) - 1) < 0.02
    assert one.flatten().unique().numel() > 0.99 * one.numel()
    # A head, a round and a column do not depend on how many there are.
    assert torch.equal(rotations(3, 2, 3, 0, 5, 64), one[:2, :3, :5])
    for other in (rotations(4, 4, 5, 0, 16, 64), rotations(3, 4, 5, 1, 16, 64)):
        assert not torch.equal(one, other)


def test_factors() -> None:
    assert [factors(n) for n in (1, 2, 10, 16, 18, 48, 64, 44, 404)] == [
        (1, 1), (2, 1), (10, 1), (16, 1), (18, 1), (6, 8), (8, 8), (2, 22), (2, 202)
    ]  # fmt: skip
    assert factors_about(0.4) == factors_about(1.0) == (1, 1)
    for n in (1.1, 2, 3.7, 16, 17, 60, 500, 2000, 70_000):
        one, two = factors_about(n)
        assert one % 2 == 0 and (two % 2 == 0 or two == 1)
        assert n / 2.2 <= one * two <= max(1.4 * n, 2)
        assert n <= 16 or max(one, two) <= 1.4 * math.sqrt(n)


def test_hashing_grows_like_n_to_the_one_and_a_half() -> None:
    def multiplied(length: int) -> int:
        hashing, tokens = Hashing(4, 2), Tokens.arange(0, length)
        with FlopCounterMode(display=False) as counter:
            bucket = hashing.buckets_of(torch.randn(1, 1, length, 3), tokens)
            hashing.route(bucket, length, tokens, ahead=False)
        return counter.get_total_flops()

    few, many = multiplied(512), multiplied(2048)
    assert 2 * 512 * 3 * 2 * Hashing(4).columns(512) == few
    assert few > 0 and many <= 8.5 * few


def test_line() -> None:
    line = by_document(Tokens.listed([7, -1, 3, 2, 9, -1], [5, 0, 5, 8, 8, 0]))
    assert line.slots.tolist() == [2, 0, 3, 4]
    assert line.number.tolist() == [[0, 0, 1, 1]] and line.sizes.tolist() == [[2, 2]]
    assert line.chunked(3).tolist() == [[0, 1, -1, 2, 3, -1]]
    assert line.by_slot(torch.tensor([[10, 20]])).tolist()[0][:1] == [10]
    assert line.longest == 2 and by_document(Tokens.arange(0, 0)).longest == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bucket_size": 0}, "bucket_size=0"),
        ({"rounds": 2.0}, "rounds=2.0"),
        ({"by": "clusters"}, "chunks or buckets"),
        ({"buckets": 7}, "buckets=7: an even number"),
        ({"buckets": 0}, "buckets=0"),
        ({"seed": None}, "seed=None"),
    ],
)
def test_mistakes(options: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        Hashing(**options)  # type: ignore[arg-type]
