"""Each atom against a table written by hand, and against torch's own answers."""

from __future__ import annotations

import pytest
import torch

from eyeline.errors import InvalidArgument
from eyeline.patterns import (
    Causal,
    Chunks,
    Explicit,
    Full,
    Pattern,
    Predicate,
    SameDocument,
    Sinks,
    Window,
    prefix_lm,
    sliding_window,
    streaming,
)  # fmt: skip
from eyeline.patterns.base import MaskMod
from eyeline.planning import dense_mask
from eyeline.testing import check_pattern
from eyeline.tokens import Tokens

TABLES: dict[str, tuple[Pattern, str]] = {
    "full": (Full(), "1111 1111 1111 1111"),
    "causal": (Causal(), "1000 1100 1110 1111"),
    "window": (Window(left=1, right=0), "1000 1100 0110 0011"),
    "wide window": (Window(left=0, right=2), "1110 0111 0011 0001"),
    "only itself": (Window(0, 0), "1000 0100 0010 0001"),
    "no limit on the left": (Window(None, 1), "1100 1110 1111 1111"),
    "sinks": (Sinks(2), "1100 1100 1100 1100"),
    "no sinks": (Sinks(0), "0000 0000 0000 0000"),
    "chunks": (Chunks(3), "1110 1110 1110 0001"),
    "sliding_window": (sliding_window(2), "1000 1100 0110 0011"),
    "streaming": (streaming(size=2, sinks=1), "1000 1100 1110 1011"),
    "prefix_lm": (prefix_lm(2), "1100 1100 1110 1111"),
    "robot": (Causal() & ~Window(0, 0), "0000 1000 1100 1110"),
    "or of and": (Causal() & Sinks(1) | Window(0, 0), "1000 1100 1010 1001"),
}


def table(text: str) -> torch.Tensor:
    return torch.tensor([[c == "1" for c in row] for row in text.split()])


@pytest.mark.parametrize("name", TABLES)
def test_table(name: str) -> None:
    pattern, rows = TABLES[name]
    assert torch.equal(dense_mask(pattern, 4), table(rows))


def test_same_document_table() -> None:
    tokens = Tokens.listed([0, 1, 2, 3], [0, 0, 5, 5])
    mask = dense_mask(SameDocument(), q_tokens=tokens, k_tokens=tokens)
    assert torch.equal(mask, table("1100 1100 0011 0011"))


def test_causal_is_lower_right_where_torch_names_it_so() -> None:
    from torch.nn.attention.bias import causal_lower_right, causal_upper_left

    mask = dense_mask(Causal(), 3, 5)
    assert torch.equal(mask, causal_lower_right(3, 5)._materialize())
    assert not torch.equal(mask, causal_upper_left(3, 5)._materialize())


@pytest.mark.parametrize("length", [1, 7, 31])
@pytest.mark.parametrize("size", [1, 2, 5, 40])
def test_sliding_window_is_transformers_meaning(length: int, size: int) -> None:
    i, j = torch.arange(length)[:, None], torch.arange(length)
    # transformers: a key is seen when it is not in the future and q - size < k.
    theirs = (j <= i) & (j > i - size)
    assert torch.equal(dense_mask(sliding_window(size), length), theirs)
    assert dense_mask(sliding_window(size), length).sum(1).max() == min(size, length)


@pytest.mark.parametrize("name", TABLES)
def test_everything_derived_agrees(name: str) -> None:
    check_pattern(TABLES[name][0], lengths=(1, 17, 67))


def test_explicit_reads_rows_as_the_last_queries() -> None:
    mask = table("1010 0110")
    assert torch.equal(dense_mask(Explicit(mask), 2, 4), mask)
    square = Explicit(table("1000 1100 0110 0011"))
    assert torch.equal(dense_mask(square, 1, 4), table("0011"))


def test_explicit_more_queries_than_keys() -> None:
    mask = torch.tensor([[True], [False], [True]])
    assert torch.equal(dense_mask(Explicit(mask), 3, 1), mask)


def test_explicit_agrees_with_its_plan() -> None:
    generator = torch.Generator().manual_seed(0)
    blocks = torch.rand(5, 5, generator=generator) < 0.4
    check_pattern(
        Explicit(blocks.repeat_interleave(27, 0).repeat_interleave(27, 1)), lengths=(131,)
    )


def test_explicit_outside_its_size_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="key positions 0 to 3; a key stands at 4"):
        dense_mask(Explicit(table("1111 1111 1111 1111")), 5, 5)


def test_explicit_refuses_what_it_cannot_read() -> None:
    with pytest.raises(InvalidArgument, match="score_mod"):
        Explicit(torch.zeros(3, 3))
    with pytest.raises(InvalidArgument, match=r"(?s)batch, query, key.*head, query, key"):
        Explicit(torch.ones(2, 3, 3, dtype=torch.bool))
    with pytest.raises(InvalidArgument, match="no head 2"):
        Explicit(torch.ones(1, 2, 3, 3, dtype=torch.bool)).at(0, 2)


def test_explicit_before_its_first_row_is_refused() -> None:
    last_rows = Explicit(torch.ones(2, 5, dtype=torch.bool))
    with pytest.raises(InvalidArgument, match="query positions 3 to 4; a query stands at 0"):
        dense_mask(last_rows, 5)


def test_explicit_broadcasts_as_in_sdpa() -> None:
    row = table("1010")
    assert torch.equal(dense_mask(Explicit(row), 4), row.expand(4, 4))
    check_pattern(Explicit(torch.arange(67)[None] % 3 == 1), lengths=(67,))
    assert not Explicit(row[None, None]).varies_by
    assert torch.equal(dense_mask(Explicit(row[None, None]), 4), row.expand(4, 4))


def test_what_differs_per_head_is_not_answered_for_one() -> None:
    for pattern in (
        Explicit(torch.ones(2, 3, 4, 4, dtype=torch.bool)),
        Predicate(lambda b, h, q, k: q >= k) & Full(),
    ):
        with pytest.raises(InvalidArgument, match="differs per batch and head"):
            dense_mask(pattern, 4)


def test_mask_mods_of_expressions_read_batch_and_head() -> None:
    index = torch.arange(5)
    rule = Predicate(lambda b, h, q, k: q >= k + h)
    mask = torch.rand(1, 3, 5, 5, generator=torch.Generator().manual_seed(0)) < 0.5
    for pattern in (rule & Full(), ~rule | Causal(), Explicit(mask) & Causal()):
        mod, right = pattern.mask_mod(), dense_mask(pattern, 5, batch=1, heads=3)[0]
        for head in range(3):
            assert torch.equal(mod(0, head, index[:, None], index), right[head])
    assert rule.at(0, 2).mask_mod()(0, 0, torch.tensor(1), torch.tensor(0)).item() is False


def test_predicate_reads_batch_and_head() -> None:
    pattern = Predicate(lambda b, h, q, k: (q >= k) & (k >= b + h))
    mask = dense_mask(pattern, 3, batch=2, heads=2)
    assert torch.equal(mask[1, 1], torch.tensor([[0, 0, 0], [0, 0, 0], [0, 0, 1]]).bool())
    assert pattern.varies_by == {"batch", "head"}
    assert Predicate(pattern.callable, per_batch=False).varies_by == {"head"}


def test_predicate_agrees_with_its_plan() -> None:
    check_pattern(
        Predicate(lambda b, h, q, k: (q * k) % 3 == 0, per_batch=False, per_head=False),
        lengths=(67,),
    )


def test_predicate_shows_the_users_own_error() -> None:
    def broken(b: object, h: object, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        raise KeyError("mine")

    def mask(rule: MaskMod) -> torch.Tensor:
        return dense_mask(Predicate(rule, per_batch=False, per_head=False), 3)

    with pytest.raises(KeyError, match="mine"):
        mask(broken)
    with pytest.raises(InvalidArgument, match="int64"):
        mask(lambda b, h, q, k: q - k)
    with pytest.raises(InvalidArgument, match=r"broadcast to \(3, 3\)"):
        mask(lambda b, h, q, k: torch.ones(2, dtype=torch.bool))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Window(-1, 0), "left=-1"),
        (lambda: Window(0, 1.5), "right=1.5"),  # type: ignore[arg-type]
        (lambda: Window(True, 0), "left=True"),
        (lambda: Sinks(-1), "-1"),
        (lambda: Chunks(0), "size=0"),
        (lambda: sliding_window(0), "size=0"),
        (lambda: streaming(0, 4), "size=0"),
        (lambda: prefix_lm(-3), "-3"),
        (lambda: Predicate(3), "int"),  # type: ignore[arg-type]
        (lambda: Explicit(3), "int"),  # type: ignore[arg-type]
        (lambda: Window(2**63, 0), "2\\^60"),
        (lambda: Sinks(2**60), "2\\^60"),
        (lambda: Chunks(2**63), "2\\^60"),
    ],
)
def test_mistakes_are_named(make: object, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        make()  # type: ignore[operator]
