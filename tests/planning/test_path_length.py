"""max_path_length: bitset search and formulas, against a search written for reading."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eyeline.errors import InvalidArgument, NotSupported
from eyeline.patterns import (
    Causal,
    Chunks,
    Dilated,
    Explicit,
    FixedColumns,
    Full,
    Global,
    Grid,
    Pattern,
    PerHead,
    Predicate,
    Sinks,
    Strided,
    Window,
    parse,
)
from eyeline.planning import dense_mask, max_path_length
from eyeline.planning.path_forms import ANYWHERE, FROM_ZERO, formula
from eyeline.planning.path_length import LONGEST_SEARCH, depth, known_length, packed, product
from eyeline.tokens import Tokens
from strategies import HEADS, sequences, varying_patterns


def searched(mask: Tensor) -> int:
    """Layer by layer: who has heard of whom, until nothing new is heard."""
    heard, layers = torch.eye(len(mask), dtype=torch.float64), 0
    while True:
        further = ((mask.double() @ heard + heard) > 0).double()
        if torch.equal(further, heard):
            return layers
        heard, layers = further, layers + 1


# Each has a formula at every length.
FORMULAS = """
    full
    causal
    ~causal
    same_segment & causal
    window(0, 0)
    window(1, 0)
    window(0, 5)
    window(3, 2)
    window(2, none)
    window(none, 3)
    window(none, 0) & window(70, none)
    sliding_window(1)
    sliding_window(2)
    sliding_window(7)
    window(2, 1) & ~window(0, 0)
    causal & ~window(0, 0) & (window(2, 0) | sinks(3))
    causal | window(3, 3)
    window(2, 0) | window(5, 0)
    strided(1)
    strided(5)
    causal & strided(7)
    strided(3) & window(7, 4)
    strided(2) & strided(3) & window(13, 0)
    dilated(3, 2, 0)
    dilated(3, 2, 1)
    dilated(2, none, 4)
    dilated(4, none, 0)
    dilated(1, 3, 3)
    sinks(0)
    sinks(4)
    ~sinks(4)
    causal & sinks(4)
    causal & ~sinks(5)
    causal | sinks(6)
    sinks(3) | causal
    fixed_columns(5, 2)
    causal & fixed_columns(8, 1)
    causal & (sinks(2) | fixed_columns(8, 1))
    streaming(3, 2)
    streaming(1, 2)
    streaming(1, 0)
    streaming(9, 0)
    streaming(2, 75)
    causal & (window(2, 0) | global(3))
    causal & global(2)
    chunks(1)
    chunks(7)
    chunks(7, left=1)
    chunks(7, left=2, right=1)
    chunks(5, left=none)
    chunks(1, left=3)
    chunks(6, left=none, right=none)
    causal & chunks(7)
    causal & chunks(7, left=1)
    causal & chunks(4, left=2, right=3)
    causal & chunks(4, left=2, right=1)
    causal & chunks(3, left=none)
    causal & (window(2, 0) | strided(7))
    causal & (window(6, 0) | strided(7))
    causal & (window(20, 0) | strided(7))
    causal & (window(1, 0) | strided(100))
    causal & (window(0, 0) | strided(5))
    causal & (chunks(7) | fixed_columns(7, 1))
    causal & (chunks(7) | fixed_columns(7, 3))
    causal & (chunks(7) | fixed_columns(7, 7))
    causal & (chunks(1) | fixed_columns(1, 1))
    chunks(7) | fixed_columns(7, 2)
    sparse_transformer(8)
    sparse_transformer(8, kind=fixed)
    global(1)
    global(3) | window(2, 2)
    global(1) | causal
    window(3, 3) | global(2) | chunks(5)
""".strip().split("\n    ")

# From this length on, since a global position must lie within the sequence.
WITH_POSITIONS = {
    "window(2, 2) | global([0, 11])": 12,
    "longformer(3, [5, 11])": 12,
    "causal & (window(2, 0) | global([0, 3, 4, 11]))": 12,
    "causal & (window(2, 0) | global([11]) | sinks(2))": 12,
    "causal & (window(0, 0) | global([5]))": 6,
    "causal & global([5, 6])": 7,
    "bigbird(4, 1, 1)": 12,
}


@pytest.mark.parametrize("text", FORMULAS)
def test_formula_is_what_a_search_finds(text: str) -> None:
    pattern = parse(text)
    for length in range(1, 81):
        tokens = Tokens.arange(0, length)
        right = searched(dense_mask(pattern, q_tokens=tokens, k_tokens=tokens))
        assert known_length(pattern, tokens) == right, f"{length} tokens"


@pytest.mark.parametrize(
    "text",
    [
        "chunks(7)", "chunks(7, left=1)", "sliding_window(3)", "streaming(3, 9)", "grid(6, 7, 1)",
        "causal & (window(2, 0) | global(7))", "causal & (window(2, 0) | strided(7))",
        "causal & (chunks(7) | fixed_columns(7, 1))", "causal & dilated(3, 2, none)",
    ],
)  # fmt: skip
@pytest.mark.parametrize("start", [1, 3, 7])
def test_the_first_token_may_stand_anywhere(text: str, start: int) -> None:
    for length in (1, 5, 42):
        tokens, pattern = Tokens.arange(start, start + length), parse(text)
        right = searched(dense_mask(pattern, q_tokens=tokens, k_tokens=tokens))
        assert max_path_length(pattern, tokens=tokens) == right


@pytest.mark.parametrize("text", WITH_POSITIONS)
def test_formula_with_positions(text: str) -> None:
    for length in range(WITH_POSITIONS[text], 81):
        pattern = parse(text).at(0, 0).of_length(length)
        known = known_length(pattern, Tokens.arange(0, length))
        assert known == searched(dense_mask(pattern, length)), f"{length} tokens"


@pytest.mark.parametrize("sides", [(1, 1), (1, 9), (9, 1), (5, 7), (8, 8)])
@pytest.mark.parametrize("radius", [0, 1, 2, 3, 20])
def test_formula_of_a_grid(sides: tuple[int, int], radius: int) -> None:
    pattern, length = Grid(*sides, radius), sides[0] * sides[1]
    known = known_length(pattern, Tokens.arange(0, length))
    assert known == searched(dense_mask(pattern, length))


@pytest.mark.parametrize("near", [1, 2, 3, 6, 11])
@pytest.mark.parametrize("stride", [2, 3, 4, 7, 12, 30])
def test_formula_of_window_and_stride(near: int, stride: int) -> None:
    pattern = Causal() & (Window(near, 0) | Strided(stride))
    for length in range(1, 81):
        known = known_length(pattern, Tokens.arange(0, length))
        assert known == searched(dense_mask(pattern, length)), f"{length} tokens"


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 40), max_size=5), st.integers(0, 8), st.integers(0, 9),
    st.integers(1, 60),
)  # fmt: skip
def test_formula_of_stretches(listed: list[int], sinks: int, near: int, length: int) -> None:
    pattern = Causal() & (Window(near, 0) | Global(listed) | Sinks(sinks))
    tokens = Tokens.arange(0, length)
    mask = dense_mask(pattern, q_tokens=tokens, k_tokens=tokens)
    assert known_length(pattern, tokens) == searched(mask)


@settings(max_examples=150, deadline=None)
@given(st.data(), varying_patterns, st.integers(1, 64))
def test_any_expression_is_what_a_search_finds(
    data: st.DataObject, pattern: Pattern, length: int
) -> None:
    tokens = data.draw(sequences(length))
    masks = dense_mask(pattern, q_tokens=tokens, k_tokens=tokens, batch=1, heads=HEADS)
    found = max_path_length(pattern, tokens=tokens, heads=HEADS)
    assert found == searched(masks[0].any(0))


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 131])
@pytest.mark.parametrize("share", [0.005, 0.02, 0.1, 0.9])
def test_depth_of_random_relations(length: int, share: float) -> None:
    generator = torch.Generator().manual_seed(length)
    mask = torch.rand(length, length, generator=generator) < share
    assert depth(packed(mask | torch.eye(length, dtype=torch.bool))) == searched(mask)


def test_a_chain_takes_every_layer() -> None:
    for length in (2, 3, 4, 5, 8, 9, 65, 97, 300):
        chain = torch.eye(length, dtype=torch.bool) | torch.eye(length, dtype=torch.bool).roll(1, 0)
        chain[0, -1] = False
        assert depth(packed(chain)) == length - 1


@pytest.mark.parametrize(("rows", "inner", "columns"), [(3, 7, 5), (67, 130, 65), (1, 64, 64)])
def test_product_is_the_boolean_one(rows: int, inner: int, columns: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    a = torch.rand(rows, inner, generator=generator) < 0.2
    b = torch.rand(inner, columns, generator=generator) < 0.2
    right = (a.double() @ b.double()) > 0
    assert torch.equal(product(packed(a), packed(b)), packed(right))


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("full", 1),
        ("causal", 1),
        ("sliding_window(256)", 3921569),
        ("streaming(256, 4)", 3921569),
        ("window(128, 64)", 15625000),
        ("chunks(64, left=1, right=1)", 15624999),
        ("sparse_transformer(1000)", 2),
        ("sparse_transformer(1000, kind=fixed)", 2),
        ("strided(7)", 1),
        ("dilated(2, 4, 4)", 125000000),
    ],
)
def test_formulas_need_no_tokens(text: str, right: int) -> None:
    assert formula(parse(text), 10**9, ANYWHERE + FROM_ZERO) == right


@pytest.mark.parametrize(
    ("text", "right"),
    [("longformer(128, 16)", 2), ("bigbird(64, 3, 2)", 2), ("sliding_window(256)", 3922)],
)
def test_a_million_tokens(text: str, right: int) -> None:
    assert max_path_length(parse(text), 1_000_000, heads=1) == right


def test_heads_unite() -> None:
    each = PerHead([Strided(5), Window(2, 0), Strided(5)]) & Causal()
    right = searched(dense_mask(each, 31, batch=1, heads=3)[0].any(0))
    assert max_path_length(each, 31, heads=3) == right == 3
    assert max_path_length(each.at(0, 1), 31) == 15
    with pytest.raises(InvalidArgument, match=r"differs per head.*heads=8"):
        max_path_length(each, 31)
    with pytest.raises(InvalidArgument, match="2"):
        max_path_length(each, 31, heads=2)


def test_documents_are_searched_apart() -> None:
    tokens = Tokens.packed([3000, 0, 3001, 2000])
    assert max_path_length(Window(5, 5), tokens=tokens) == 600
    assert max_path_length(Causal(), tokens=tokens) == 1
    small = Tokens.packed([7, 0, 13, 1, 19], length=43)
    pattern = Window(2, 0) & ~Window(0, 0)
    right = searched(dense_mask(pattern, q_tokens=small, k_tokens=small))
    assert max_path_length(pattern, tokens=small) == right == 9


def test_pads_and_gaps() -> None:
    tokens = Tokens.listed([-1, -1, 0, 2, 4, 5, 9, 10])
    pattern = Window(2, 0)
    right = searched(dense_mask(pattern, q_tokens=tokens, k_tokens=tokens))
    assert max_path_length(pattern, tokens=tokens) == right == 3
    assert max_path_length(Global([4]), tokens=tokens) == 2
    assert max_path_length(Global([3]), tokens=tokens) == 0
    assert max_path_length(Global(1), tokens=Tokens.listed([-1, 0, -1])) == 0


def test_nothing_to_hear() -> None:
    for pattern in (Full(), Window(0, 0), Global(0), Chunks(3)):
        assert max_path_length(pattern, 0) == max_path_length(pattern, 1) == 0
    assert max_path_length(~Full(), 13) == 0


def test_what_no_formula_fits_is_searched() -> None:
    pattern = Dilated(3, 2, 2) | Sinks(1)
    tokens = Tokens.arange(0, 500)
    assert known_length(pattern, tokens) is None
    assert max_path_length(pattern, 500) == searched(dense_mask(pattern, 500))


def test_what_is_too_long_to_search_is_refused() -> None:
    pattern = Dilated(3, 2, 2) | Sinks(1)
    words = f"over 5,000 tokens.*up to 4,096.*max_path_length(pattern, {LONGEST_SEARCH})"
    with pytest.raises(NotSupported, match=re.escape(words).replace(r"\.\*", ".*")):
        max_path_length(pattern, 5000)


def test_mistakes_are_named() -> None:
    with pytest.raises(InvalidArgument, match="not both"):
        max_path_length(Full(), 3, tokens=Tokens.arange(0, 3))
    with pytest.raises(InvalidArgument, match="length"):
        max_path_length(Full())
    with pytest.raises(InvalidArgument, match=r"row\(b\)"):
        max_path_length(Full(), tokens=Tokens.padded([2, 3]))
    with pytest.raises(InvalidArgument, match="batch row"):
        max_path_length(Predicate(lambda b, h, q, k: q >= k), 7, heads=2)
    with pytest.raises(InvalidArgument, match="heads=0"):
        max_path_length(Full(), 7, heads=0)
    with pytest.raises(InvalidArgument, match=r"mask.*a key stands at 4"):
        max_path_length(Explicit(torch.ones(4, 4, dtype=torch.bool)), 5)


def test_many_terms_are_searched() -> None:
    wide = FixedColumns(3, 1) | Sinks(2) | Window(1, 0)
    pattern = wide & (wide | Chunks(4)) & (wide | Chunks(5)) & (wide | Chunks(6)) & ~Window(0, 2)
    assert max_path_length(pattern, 61) == searched(dense_mask(pattern, 61))
