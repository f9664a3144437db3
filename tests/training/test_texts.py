"""Texts, what is held out of them, and the windows that are cut out of the rest."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eyeline.errors import InvalidArgument
from eyeline.tokenizer import ByteTokenizer
from eyeline.training.texts import Stretch, Texts, Windows, half_windows, read_texts
from training.tiny import text

BYTES = ByteTokenizer()


def read(*files: Path, length: int = 13, held_out: Path | None = None, **options: float) -> Texts:
    values = {"validation": 0.1, "seed": 3} | options
    return read_texts(
        [str(file) for file in files], BYTES, length=length,
        held_out=None if held_out is None else str(held_out),
        validation=values["validation"], seed=int(values["seed"]),
    )  # fmt: skip


def slots(stretches: list[Stretch]) -> list[int]:
    return [slot for each in stretches for slot in range(each.start, each.stop)]


def test_every_token_is_on_one_side(tmp_path: Path) -> None:
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_text(text(500))
    two.write_text(text(301))
    found = read(one, two)
    size = one.stat().st_size + two.stat().st_size
    assert bytes(found.ids.tolist()) == one.read_bytes() + two.read_bytes()
    assert sorted(slots([*found.training, *found.held_out])) == list(range(size))
    assert 0.08 * size < len(slots(list(found.held_out))) < 0.12 * size
    edge = one.stat().st_size
    assert all(not s.start < edge < s.stop for s in (*found.training, *found.held_out))


def test_the_split_depends_on_the_seed_alone(tmp_path: Path) -> None:
    file = tmp_path / "one.txt"
    file.write_text(text())
    assert read(file).held_out == read(file).held_out != read(file, seed=4).held_out
    assert read(file).digest == read(file, seed=4).digest


def test_a_file_of_held_out_text(tmp_path: Path) -> None:
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_text(text())
    two.write_text("short")
    found = read(one, held_out=two)
    size = one.stat().st_size
    assert (found.training, found.held_out) == ([Stretch(0, size)], [Stretch(size, size + 5)])
    assert not read(one, validation=0.0).held_out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is empty"),
        (b" \n\n", "it is empty"),
        (b"a short text", "too short to hold some of it out at length 13: 56 tokens"),
    ],
)
def test_texts_that_do_not_serve(content: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "one.txt"
    file.write_bytes(content)
    with pytest.raises(InvalidArgument, match=message):
        read(file)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="nowhere: no such file"):
        read(tmp_path / "nowhere")


def test_text_shorter_than_the_length(tmp_path: Path) -> None:
    file = tmp_path / "one.txt"
    file.write_text("fourteen bytes")
    assert read(file, validation=0.0, length=13).training == [Stretch(0, 14)]
    with pytest.raises(InvalidArgument, match="longest stretch has 14 tokens"):
        read(file, validation=0.0, length=14)


def windows_of(stretches: list[Stretch], length: int, rows: int) -> Windows:
    ids = torch.arange(max(each.stop for each in stretches))
    return Windows(ids, stretches, length=length, rows=rows, seed=5)


@given(st.lists(st.integers(0, 90), min_size=1, max_size=4), st.integers(2, 13), st.integers(1, 5))
def test_windows_stay_inside_and_predict_a_token_once(
    sizes: list[int], length: int, rows: int
) -> None:
    start, stretches = 0, []
    for size in sizes:
        stretches.append(Stretch(start, start + length + 1 + size))
        start = stretches[-1].stop + 2
    windows = windows_of(stretches, length, rows)
    for epoch in (0, 3):
        batches = [windows.at(epoch * windows.count + i + 1) for i in range(windows.count)]
        every = torch.cat(batches)
        assert bool((every.diff(dim=1) == 1).all())
        for first, last in zip(every[:, 0].tolist(), every[:, -1].tolist(), strict=True):
            assert any(s.start <= first and last < s.stop for s in stretches)
        targets = Counter(every[:, 1:].flatten().tolist())
        assert set(targets.values()) == {1}
        # All but a window of each stretch, and but a batch.
        lost = len(slots(stretches)) - sum(targets.values())
        assert lost < 2 * length * len(stretches) + rows * length + len(stretches)


def test_windows_are_a_function_of_the_step() -> None:
    one, other = (windows_of([Stretch(0, 331), Stretch(400, 520)], 7, 5) for _ in range(2))
    forward = [one.at(step) for step in range(1, 30)]
    backward = [other.at(step) for step in reversed(range(1, 30))][::-1]
    assert all(map(torch.equal, forward, backward))
    assert torch.equal(one.at(4)[1:3], one.at(4, slice(1, 3)))
    again = [one.at(step + one.count) for step in range(1, 30)]
    assert not any(map(torch.equal, forward, again))


@given(st.lists(st.integers(2, 60), min_size=1, max_size=4), st.integers(2, 13))
def test_measured_targets_count_once_and_have_context(sizes: list[int], length: int) -> None:
    edges = [0]
    for size in sizes:
        edges.append(edges[-1] + size)
    stretches = [Stretch(a, b) for a, b in pairwise(edges)]
    seen: list[int] = []
    for window in half_windows(stretches, length=length, most=10**6):
        mine = next(s for s in stretches if s.start <= window.start < s.stop)
        assert window.start + window.length < mine.stop and window.length <= length
        targets = range(window.start + 1 + window.seen, window.start + window.length + 1)
        seen += targets
        context = min(length // 2, targets[0] - mine.start)
        assert targets[0] - window.start >= context
    assert sorted(seen) == [i for s in stretches for i in range(s.start + 1, s.stop)]


def test_no_more_is_measured_than_asked() -> None:
    found = half_windows([Stretch(0, 1000)], length=10, most=7)
    assert len(found) == 7 and found == sorted(found) and found[-1].start > 800
