"""Each atom against a table written by hand, and against torch's own answers."""

from __future__ import annotations

import pytest
import torch

from eyeline.errors import InvalidArgument
from eyeline.functional import attention
from eyeline.patterns import (
    Blocks,
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
    Random,
    SameSegment,
    Sinks,
    Strided,
    Window,
    bigbird,
    longformer,
    prefix_lm,
    sliding_window,
    sparse_transformer,
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
    "strided": (Strided(2), "10101 01010 10101 01010 10101"),
    "strided by 3": (Strided(3), "1001 0100 0010 1001"),
    "a stride of 1": (Strided(1), "111 111 111"),
    "dilated": (Dilated(2, left=1, right=1), "10100 01010 10101 01010 00101"),
    "dilated, one side": (Dilated(3, 1, 0), "10000 01000 00100 10010 01001"),
    "dilated, no limit": (Dilated(2, None, 0), "10000 01000 10100 01010 10101"),
    "fixed columns": (FixedColumns(3, 1), " ".join(["001001"] * 6)),
    "wide fixed columns": (FixedColumns(3, 2), " ".join(["011011"] * 6)),
    "global": (Global(1), "1111 1000 1000 1000"),
    "global positions": (Global([2, 0]), "1111 1010 1111 1010"),
    "nobody is global": (Global([]), "00 00"),
    "chunks and one before": (Chunks(2, left=1), "110000 110000 111100 111100 001111 001111"),
    "chunks and one after": (Chunks(2, 0, 1), "111100 111100 001111 001111 000011 000011"),
    "chunks and all before": (Chunks(2, None, 0), "110000 110000 111100 111100 111111 111111"),
    "blocks": (Blocks([[1, 0], [1, 1]], 2), "1100 1100 1111 1111"),
    "ragged blocks": (Blocks([[1, 0], [0, 1]], 2), "110 110 001"),
    "a wide grid": (Grid(2, 3, 1), "110110 111111 011011 110110 111111 011011"),
    "a tall grid": (Grid(3, 2, 1), "111100 111100 111111 111111 001111 001111"),
    "a grid of radius 0": (Grid(2, 2, 0), "1000 0100 0010 0001"),
    "longformer": (longformer(1, 1), "11111 11100 11110 10111 10011"),
    "longformer, last": (longformer(0, [4]), "10001 01001 00101 00011 11111"),
    "bigbird": (
        bigbird(2, 0, 1),
        "11111111 11111111 11111100 11111100 11111111 11111111 11001111 11001111",
    ),
    "strided transformer": (sparse_transformer(2), "100000 110000 111000 011100 101110 010111"),
    "strided transformer by 3": (
        sparse_transformer(3),
        "1000000 1100000 1110000 1111000 0111100 0011110 1001111",
    ),
    "fixed transformer": (
        sparse_transformer(3, "fixed"),
        "1000000 1100000 1110000 0011000 0011100 0011110 0010011",
    ),
    "or of and": (Causal() & Sinks(1) | Window(0, 0), "1000 1100 1010 1001"),
}


def table(text: str) -> torch.Tensor:
    return torch.tensor([[c == "1" for c in row] for row in text.split()])


@pytest.mark.parametrize("name", TABLES)
def test_table(name: str) -> None:
    pattern, rows = TABLES[name]
    right = table(rows)
    fixed = pattern.at(0, 0)
    assert torch.equal(dense_mask(fixed, len(right)), right)


def test_same_segment_table() -> None:
    tokens = Tokens.listed([0, 1, 2, 3], segments=[0, 0, 5, 5])
    mask = dense_mask(SameSegment(), q_tokens=tokens, k_tokens=tokens)
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
    # Random draws of one length, so that no block is asked for that does not exist.
    check_pattern(TABLES[name][0].at(0, 0).of_length(80), lengths=(1, 17, 67))


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
    ("pattern", "length", "words"),
    [
        (Global(5), 4, "position 4 lies outside a sequence of 4 tokens, at 0 to 3"),
        (Global([0, 17]), 17, "position 17 lies outside a sequence of 17 tokens"),
        (Causal() & ~Global([9]), 9, "position 9"),
        (Grid(3, 4, 1), 13, "height 3 and width 4 has 12 tokens; the sequence has 13"),
        (Grid(3, 4, 1) | Full(), 11, "the sequence has 11"),
        (Blocks([[1, 0], [1, 1]], 4), 9, r"\(2, 2\) blocks of 4; .* 9 tokens needs \(3, 3\)"),
        (Blocks([[1, 0], [1, 1]], 4), 4, r"4 tokens needs \(1, 1\)"),
        (Blocks([[1, 0, 1], [1, 1, 0]], 4), 9, r"the layout is \(2, 3\).*\(3, 3\)"),
        (Random(3, 4), 8, "blocks_per_row=3 is more than the 2 blocks of size=4 in 8 tokens"),
        (PerHead([Full(), Global(5)]), 4, "position 4"),
    ],
    ids=str,
)
def test_lengths_that_cannot_be_meant_are_refused(
    pattern: Pattern, length: int, words: str
) -> None:
    """Where tokens are omitted; explicit tokens say where they stand."""
    heads = len(pattern.members) if isinstance(pattern, PerHead) else 2
    x = torch.zeros(1, heads, length, 4)
    with pytest.raises(InvalidArgument, match=words):
        attention(x, x, x, pattern)
    with pytest.raises(InvalidArgument, match=words):
        attention(x[:, :, -1:], x, x, pattern)
    with pytest.raises(InvalidArgument, match=words):
        dense_mask(pattern, length, batch=1, heads=heads)
    if not isinstance(pattern, Random):
        tokens = Tokens.arange(0, length)
        attention(x, x, x, pattern, q_tokens=tokens, k_tokens=tokens, backend="reference")


def test_nobody_looks_beside_a_layout() -> None:
    beyond = Tokens.listed([0, 3, 4, 99, -1])
    mask = dense_mask(Blocks([[1, 1]], 2), q_tokens=beyond, k_tokens=beyond)
    assert torch.equal(mask, table("11000 00000 00000 00000 00000"))


def test_small_layouts_are_values_and_large_ones_are_bound() -> None:
    cells = torch.rand(16, 16, generator=torch.Generator().manual_seed(0)) < 0.5
    small, same = Blocks(cells, 8), Blocks(cells.int().tolist(), 8)
    assert small == same and hash(small) == hash(same) and not small.bound
    assert small != Blocks(cells, 9) and small != Blocks(~cells, 8) and small != Causal()
    wide = torch.ones(16, 17, dtype=torch.bool)
    large, other = Blocks(wide, 8), Blocks(wide, 8)
    assert large != other and large == large and large.bound == (large,)
    assert str(large | other) == "blocks(#0) | blocks(#1)"
    assert str(~small).startswith("~blocks([[")


def test_a_layout_is_copied() -> None:
    for rows in (2, 17):
        layout = torch.ones(rows, 17, dtype=torch.bool)
        pattern = Blocks(layout, 1)
        layout.zero_()
        assert dense_mask(
            pattern, q_tokens=Tokens.arange(0, rows), k_tokens=Tokens.arange(0, 17)
        ).all()


def test_large_layouts_agree_with_their_plan() -> None:
    generator = torch.Generator().manual_seed(5)
    for size in (3, 16):
        check_pattern(Blocks(torch.rand(23, 19, generator=generator) < 0.3, size), lengths=(67,))


def test_a_strided_transformer_is_what_the_paper_writes() -> None:
    """A⁽¹⁾ = {max(0, i - l) … i}, A⁽²⁾ = {j : (i - j) mod l = 0}, both with j <= i."""
    for stride in (1, 2, 5, 8):
        i, j = torch.arange(37)[:, None], torch.arange(37)
        near, far = j >= (i - stride).clamp(min=0), (i - j) % stride == 0
        right = (near | far) & (j <= i)
        assert torch.equal(dense_mask(sparse_transformer(stride), 37), right)


def test_a_fixed_transformer_is_what_the_paper_writes() -> None:
    """A⁽¹⁾ = {j : ⌊j/l⌋ = ⌊i/l⌋}, A⁽²⁾ = {j : j mod l in {l - c … l}}, both with j <= i."""
    for stride, width in ((1, 1), (4, 2), (5, 5), (8, 3)):
        i, j = torch.arange(37)[:, None], torch.arange(37)
        right = (j // stride == i // stride) | (j % stride >= stride - width)
        made = dense_mask(sparse_transformer(stride, "fixed", width), 37)
        assert torch.equal(made, right & (j <= i))


def test_transformers_bigbird_is_written_as_its_docstring_says() -> None:
    block, blocks = 3, 7
    n = block * blocks
    pattern = bigbird(block, 2, 0) | Global([*range(block), *range(n - block, n)])
    layout = dense_mask(pattern, n, batch=1, heads=2)[0, :, ::block, ::block]
    near = (torch.arange(blocks)[:, None] - torch.arange(blocks)).abs() <= 1
    for head in range(2):
        drawn = dense_mask(Random(2, block).at(0, head), n)[::block, ::block]
        right = near | drawn
        right[[0, -1]] = True
        right[:, [0, -1]] = True
        assert torch.equal(layout[head], right)


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
        (lambda: Chunks(4, left=-1), "left=-1"),
        (lambda: Chunks(4, 0, 1.5), "right=1.5"),  # type: ignore[arg-type]
        (lambda: Strided(0), "stride=0"),
        (lambda: Strided(-3), "stride=-3"),
        (lambda: Dilated(0, 1, 1), "step=0"),
        (lambda: Dilated(2, -1, 1), "left=-1"),
        (lambda: Dilated(2, 1, -2), "right=-2"),
        (lambda: Dilated(2**40, 2**40, 0), "step · left"),
        (lambda: FixedColumns(0, 1), "stride=0"),
        (lambda: FixedColumns(4, 0), "width=0"),
        (lambda: FixedColumns(4, 5), "width=5 is more than its stride=4"),
        (lambda: Global(-1), "tokens=-1"),
        (lambda: Global([3, -1]), "position=-1"),
        (lambda: Global("01"), "position='0'"),  # type: ignore[arg-type]
        (lambda: Grid(0, 4, 1), "height=0"),
        (lambda: Grid(4, 0, 1), "width=0"),
        (lambda: Grid(4, 4, -1), "radius=-1"),
        (lambda: Blocks([[1]], 0), "size=0"),
        (lambda: Blocks([1, 0], 4), "row 1: a row is a list"),  # type: ignore[list-item]
        (lambda: Blocks([[1, 0], [1]], 4), "rows of 2 and 1"),
        (lambda: Blocks([[1, 3]], 4), "entry 3"),
        (lambda: Blocks([], 4), r"\(0,\)"),
        (lambda: Blocks("10", 4), "is a str"),  # type: ignore[arg-type]
        (lambda: Blocks(torch.ones(2, 2), 4), "float32"),
        (lambda: Blocks(torch.ones(2, 2, 2, dtype=torch.bool), 4), r"\(2, 2, 2\).*PerHead"),
        (lambda: PerHead([]), "empty"),
        (lambda: PerHead(Causal()), "is a Causal"),  # type: ignore[arg-type]
        (lambda: PerHead([Causal(), 3]), "member 1 is a int"),  # type: ignore[list-item]
        (lambda: longformer(-1, 2), "radius=-1"),
        (lambda: longformer(1, [-2]), "position=-2"),
        (lambda: bigbird(0, 1, 1), "block=0"),
        (lambda: bigbird(4, -1, 1), "random=-1"),
        (lambda: bigbird(4, 1, -1), "global_blocks=-1"),
        (lambda: bigbird(4, 1, 1, seed=-1), "seed=-1"),
        (lambda: sparse_transformer(0), "stride=0"),
        (lambda: sparse_transformer(4, "stride"), "kind='stride'.*strided.*fixed"),
        (lambda: sparse_transformer(4, "fixed", 5), "width=5"),
        (lambda: sparse_transformer(4, width=2), 'width=2 is for kind="fixed"'),
    ],
)
def test_mistakes_are_named(make: object, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        make()  # type: ignore[operator]
