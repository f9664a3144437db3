"""Tables and their mistakes, batches by tokens, and which rows are held out."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eyeline.errors import InvalidArgument
from eyeline.training.rows import Row, RowOrder, padded, read_folders, read_table, split_rows


def table(tmp_path: Path, content: str, name: str = "rows.tsv") -> str:
    path = tmp_path / name
    path.write_text(content)
    return str(path)


def test_tabs_and_line_numbers(tmp_path: Path) -> None:
    file = table(tmp_path, 'one\ta\r\n\n "two" , 2\tb\textra\n')
    assert read_table(file, ("1", "2")) == [Row("one", "a", 1), Row('"two" , 2', "b", 3)]
    with pytest.raises(InvalidArgument, match="line 1: column 3 is missing"):
        read_table(file, ("1", "3"))


def test_columns_by_name(tmp_path: Path) -> None:
    file = table(tmp_path, "label\tid\ttext\na\t1\tone\nb\t2\ttwo\n")
    assert read_table(file, ("text", "label")) == [Row("one", "a", 2), Row("two", "b", 3)]
    with pytest.raises(InvalidArgument, match=r"no column 'texts'; there are label, id, text"):
        read_table(file, ("texts", "label"))
    with pytest.raises(InvalidArgument, match="two numbers from 1, or two names"):
        read_table(file, ("text", "1"))


def test_quoted_fields_go_over_lines(tmp_path: Path) -> None:
    file = table(tmp_path, '"one, and\nmore",a\n\n"say ""two""",b\nthree\n', "rows.csv")
    with pytest.raises(InvalidArgument, match=r"rows\.csv, line 5: column 2 is missing or empty"):
        read_table(file, ("1", "2"))
    file = table(tmp_path, '"one, and\nmore",a\n\n"say ""two""",b\n', "rows.csv")
    assert read_table(file, ("1", "2")) == [Row("one, and\nmore", "a", 1), Row('say "two"', "b", 4)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "one\ta\ntwo\nthree\tb\n",
            r"rows\.tsv, line 2: column 2 is missing .* 1 column$",
        ),
        ("one\ta\n\tb\n", "line 2: column 1 is missing or empty; there are 2 columns"),
        ("\n \n", "it has no rows"),
        ("", "it has no rows"),
    ],
)
def test_rows_that_lack_something(content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=message):
        read_table(table(tmp_path, content), ("1", "2"))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no such file"):
        read_table(str(tmp_path / "nowhere.tsv"), ("1", "2"))
    (tmp_path / "latin.tsv").write_bytes(b"one\ta\nd\xe9j\xe0\tb\n")
    with pytest.raises(InvalidArgument, match=r"latin\.tsv, line 2: not UTF-8 text"):
        read_table(str(tmp_path / "latin.tsv"), ("1", "2"))
    with pytest.raises(InvalidArgument, match=r"bad\.csv, line 1: it is no CSV"):
        read_table(table(tmp_path, '"a"b,c\n', "bad.csv"), ("1", "2"))


def test_folders_by_label(tmp_path: Path) -> None:
    for label, name, content in (("b", "1.txt", "one"), ("a", "x/2.txt", "two\n"), ("a", "3", "3")):
        path = tmp_path / label / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    found = {(row.first, row.second) for row in read_folders(str(tmp_path))}
    assert found == {("one", "b"), ("two", "a"), ("3", "a")}
    (tmp_path / "a" / "empty").write_text("\n")
    with pytest.raises(InvalidArgument, match="empty: it is empty"):
        read_folders(str(tmp_path))


def test_folders_that_have_no_classes(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="one folder in it for each"):
        read_folders(str(tmp_path))
    (tmp_path / "a").mkdir()
    with pytest.raises(InvalidArgument, match="have no files"):
        read_folders(str(tmp_path))


@given(st.lists(st.integers(1, 23), min_size=1, max_size=60), st.integers(1, 97))
def test_an_epoch_has_each_row_once_in_batches_by_tokens(sizes: list[int], tokens: int) -> None:
    order = RowOrder(sizes, batch_tokens=tokens, seed=3)
    for epoch in (0, 2):
        batches = [order.at(epoch * order.count + i + 1) for i in range(order.count)]
        assert Counter(row for batch in batches for row in batch) == Counter(range(len(sizes)))
        for batch in batches:
            longest = max(sizes[row] for row in batch)
            assert longest * len(batch) <= tokens or len(batch) == 1
        # Alike together: no row could change places with one of another batch.
        spans = sorted((min(s), max(s)) for s in ([sizes[r] for r in b] for b in batches))
        assert all(one[1] <= other[0] for one, other in pairwise(spans))


def test_the_order_is_a_function_of_the_step() -> None:
    sizes = [3, 5, 2, 7] * 13
    one, other = (RowOrder(sizes, batch_tokens=31, seed=3) for _ in range(2))
    forward = [one.at(step) for step in range(1, 60)]
    assert forward == [other.at(step) for step in reversed(range(1, 60))][::-1]
    assert forward[: one.count] != forward[one.count : 2 * one.count]


def test_rows_are_filled_up_on_the_right() -> None:
    ids, tokens = padded([[1, 2, 3], [4]], 9)
    assert ids.tolist() == [[1, 2, 3], [4, 9, 9]]
    assert tokens is not None and tokens.positions.tolist() == [[0, 1, 2], [0, -1, -1]]
    ids, tokens = padded([[1, 2], [3, 4]], 9)
    assert tokens is None and torch.equal(ids, torch.tensor([[1, 2], [3, 4]]))


def test_equal_texts_are_held_out_together() -> None:
    rows = [Row(str(i % 97), str(i), i) for i in range(1000)]
    train, held = split_rows(rows, 0.2, seed=1)
    assert sorted(train + held) == sorted(rows)
    assert not {row.first for row in train} & {row.first for row in held}
    assert 100 < len(held) < 300
    assert split_rows(rows[::-1], 0.2, seed=1)[1] == held[::-1]
    assert split_rows(rows, 0.0, seed=1) == (rows, [])
    with pytest.raises(InvalidArgument, match="3 rows are too few to hold"):
        split_rows(rows[:3], 0.01, seed=1)
