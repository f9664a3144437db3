"""The hand-over to FlexAttention: block masks by value, mask callables, refusals, the forward pass.

FlexAttention runs uncompiled here: the whole matrix, exactly. tests/oracles compiles it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, create_mask

from eyeline import memory
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.functional import attention, attention_with_lse, explain
from eyeline.kernels import KERNELS, flex, reference
from eyeline.kernels.request import Request, mask_of
from eyeline.patterns import (
    Blocks,
    Causal,
    Explicit,
    Full,
    Pattern,
    Predicate,
    Random,
    Window,
    sliding_window,
    streaming,
)  # fmt: skip
from eyeline.planning import dense_mask, plan
from eyeline.planning.flex_blocks import block_mask
from eyeline.planning.mask_mods import moved
from eyeline.scores import Called, Softcap
from eyeline.testing.cases import Case, cases
from eyeline.testing.kernel import largest_tensor
from eyeline.tokens import Tokens
from strategies import patterns, token_pairs

CASES = list(cases())
TABLES = ("kv", "full_kv", "q", "full_q")


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlexAttention as plain tensor operations, in any floating type."""
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    monkeypatch.setattr(flex, "compiled", lambda device: torch_flex.flex_attention)


def of_case(case: Case, block_size: int) -> BlockMask:
    q, k = case.request().q_tokens, case.request().k_tokens
    varies = bool(case.pattern.varies_by)
    batch, heads = (case.batch, case.heads) if varies else (None, None)
    return block_mask(
        case.pattern, q_tokens=q, k_tokens=k, batch=batch, heads=heads, block_size=block_size
    )


def from_dense(mask: Tensor, block_size: int) -> BlockMask:
    """torch's own way from a bool (B, H, L, S)."""
    return create_block_mask(
        lambda b, h, i, j: mask[b, h, i, j], *mask.shape, device="cpu", BLOCK_SIZE=block_size
    )


def rows(mask: BlockMask, table: str) -> list[list[int]]:
    """The entries of a table that mean something, batch rows and heads one after the other."""
    count = getattr(mask, f"{table}_num_blocks")
    index = getattr(mask, f"{table}_indices")
    assert count.dtype == index.dtype == torch.int32
    pairs = zip(count.flatten().tolist(), index.flatten(0, 2).tolist(), strict=True)
    return [entries[:size] for size, entries in pairs]


def assert_same(found: BlockMask, mask: Tensor, block_size: int) -> None:
    """Indices and callable say what the dense mask says."""
    shape = found.kv_num_blocks.shape[:2]
    mask = mask[(None,) * (4 - mask.dim())]
    for axis in (0, 1):
        if shape[axis] == 1:  # then the rule is the same for all
            assert torch.equal(mask, mask.narrow(axis, 0, 1).expand_as(mask))
            mask = mask.narrow(axis, 0, 1)
    own = mask.broadcast_to(*shape, *mask.shape[2:])
    right = from_dense(own, block_size)
    for table in TABLES:
        assert rows(found, table) == rows(right, table), table
        assert getattr(found, f"{table}_indices").shape == getattr(right, f"{table}_indices").shape
    assert found.seq_lengths == right.seq_lengths and found.BLOCK_SIZE == right.BLOCK_SIZE
    assert torch.equal(called(found, own.shape), own)


def called(mask: BlockMask, shape: torch.Size | tuple[int, ...]) -> Tensor:
    """The mask callable asked about every pair."""
    return create_mask(mask.mask_mod, *shape, device="cpu")


@pytest.mark.parametrize("block_size", [16, 128])
def test_equals_create_block_mask_in_every_case(block_size: int) -> None:
    for case in CASES if block_size == 16 else CASES[::3]:
        try:
            assert_same(of_case(case, block_size), mask_of(case.request()), block_size)
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from error


@settings(max_examples=60)
@given(patterns, token_pairs(), st.sampled_from([4, 16, 31]), st.booleans())
def test_equals_create_block_mask_for_any_expression(
    pattern: Pattern, tokens: tuple[Tokens, Tokens], block_size: int, overlapping: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if overlapping:
            patch.setattr("eyeline.budgets.budgets.blocks_laid_out", 0)
        q, k = tokens
        found = block_mask(pattern, q_tokens=q, k_tokens=k, block_size=block_size)
        assert_same(found, dense_mask(pattern, q_tokens=q, k_tokens=k), block_size)


def test_a_plan_brings_its_tokens() -> None:
    made = plan(streaming(37, 3), q_tokens=Tokens.arange(20, 87), k_tokens=Tokens.arange(0, 87))
    mask = dense_mask(streaming(37, 3), 67, 87)
    assert_same(block_mask(made, block_size=16), mask, 16)
    with pytest.raises(InvalidArgument, match="its own tokens"):
        block_mask(made, 87)


def test_batched_tokens_and_heads_that_differ() -> None:
    generator = torch.Generator().manual_seed(0)
    pattern = Explicit(torch.rand(1, 3, 67, 67, generator=generator) < 0.02)
    documents = torch.arange(67).repeat(2, 1) // torch.tensor([[20], [33]])
    tokens = Tokens(torch.arange(67).repeat(2, 1), documents)
    found = block_mask(pattern, q_tokens=tokens, k_tokens=tokens, heads=3, block_size=16)
    assert found.shape == (2, 3, 67, 67)
    right = dense_mask(pattern, q_tokens=tokens, k_tokens=tokens, batch=2, heads=3)
    assert_same(found, right, 16)


def test_blocks_that_are_not_looked_up_stay_partial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eyeline.budgets.budgets.block_pairs", 0)
    generator = torch.Generator().manual_seed(0)
    pattern = Predicate(lambda b, h, i, j: i // 32 >= j // 16, per_batch=False, per_head=False)
    found = block_mask(pattern, 101, block_size=16)
    right = from_dense(dense_mask(pattern, 101)[None, None], 16)
    assert not found.full_kv_num_blocks.any() and right.full_kv_num_blocks.any()  # type: ignore[union-attr]
    assert (found.to_dense() >= right.to_dense()).all()
    q, k, v = (torch.randn(1, 1, 101, 16, generator=generator) for _ in range(3))
    eager = torch_flex.flex_attention
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    torch.testing.assert_close(eager(q, k, v, block_mask=found), eager(q, k, v, block_mask=right))


@pytest.mark.parametrize("pattern", [Window(9, 9), ~Causal(), Full()], ids=str)
def test_splits_on_where_refining_stopped_early(
    pattern: Pattern, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eyeline.planning.refine._MOST_TILES", 0)
    monkeypatch.setattr("eyeline.planning.refine._COARSEST", 2)
    for length in (67, 128, 131):
        assert_same(block_mask(pattern, length, block_size=4), dense_mask(pattern, length), 4)


def test_memory_is_that_of_the_blocks() -> None:
    length = 1 << 19
    block_mask(sliding_window(256), 512)
    # Index tensors of all columns would hold (length / 128)² = 2^24 entries each.
    assert largest_tensor(lambda: block_mask(sliding_window(256), length)) <= length


def test_more_blocks_than_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eyeline.budgets.budgets.blocks", 20)
    with pytest.raises(InvalidArgument, match=r"causal has 21 blocks .* block_size of 32"):
        block_mask(Causal(), 96, block_size=16)


def test_wider_tables_than_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eyeline.budgets.budgets.block_entries", 20)
    with pytest.raises(InvalidArgument, match="6 rows of up to 6 blocks"):
        block_mask(Causal(), 96, block_size=16)


@pytest.mark.parametrize("laid_out", [0, 1 << 20], ids=["overlapping", "in full"])
def test_torch_can_work_with_the_block_mask(laid_out: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eyeline.budgets.budgets.blocks_laid_out", laid_out)
    pattern, length = streaming(37, 3), 200
    found, right = block_mask(pattern, length, block_size=16), dense_mask(pattern, length)
    theirs = from_dense(right[None, None], 16)
    assert torch.equal(found.to_dense(), theirs.to_dense())
    assert found.sparsity() == theirs.sparsity()
    assert rows(found[0], "kv") == rows(theirs[0], "kv")
    assert rows(found.to("cpu"), "full_q") == rows(theirs, "full_q")
    assert "BlockMask" in str(found)


def held(value: Any) -> list[Tensor]:
    """The tensors in the closure of a callable, and of the callables there."""
    if isinstance(value, Tensor):
        return [value]
    cells = getattr(value, "__closure__", None)
    return [x for cell in cells for x in held(cell.cell_contents)] if cells else []


def test_made_under_inference_mode_and_used_for_training() -> None:
    with torch.inference_mode():
        tokens = Tokens.packed([3, 40, 24])
        found = block_mask(Causal(), q_tokens=tokens, k_tokens=tokens)
    tensors = [x for x in vars(found).values() if isinstance(x, Tensor)] + held(found.mask_mod)
    assert len(tensors) == 12 and not any(x.is_inference() for x in tensors)
    assert torch.equal(
        called(found, (1, 1, 67, 67))[0, 0],
        dense_mask(Causal(), q_tokens=tokens, k_tokens=tokens),
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 0}, "needs queries and keys, got 0 and 0"),
        ({"length": 9, "block_size": 0}, "block_size=0"),
        ({"length": 9, "q_tokens": Tokens.arange(0, 9)}, "give a length, or both"),
        ({}, "give a length, or both"),
    ],
    ids=["empty", "block_size", "both", "neither"],
)
def test_bad_input(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        block_mask(Causal(), **arguments)


def test_rows_and_heads_must_be_known() -> None:
    rule = Predicate(lambda b, h, i, j: i >= j + h)
    with pytest.raises(InvalidArgument, match="per batch: say how many"):
        block_mask(rule, 9, heads=2)
    with pytest.raises(InvalidArgument, match="per head: say how many"):
        block_mask(rule, 9, batch=2)
    tokens = Tokens.padded([3, 9])
    with pytest.raises(InvalidArgument, match="batch=3, but q_tokens have 2"):
        block_mask(rule, q_tokens=tokens, k_tokens=tokens, batch=3, heads=1)
    with pytest.raises(InvalidArgument, match=r"is for 1 batch rows and 3 heads"):
        block_mask(Explicit(torch.ones(1, 3, 9, 9, dtype=torch.bool)), 9, heads=2)


def test_a_mask_that_does_not_reach_the_tokens_is_an_error() -> None:
    small = Explicit(torch.ones(67, 67, dtype=torch.bool))
    with pytest.raises(InvalidArgument, match="stands at 99"):
        block_mask(small | Causal(), 100)
    # Nobody does not count, wherever the mask begins.
    tokens = Tokens.padded([67], length=80).row(0)
    last = Explicit(torch.ones(31, 67, dtype=torch.bool))
    q, k = tokens.last(31), tokens
    found = block_mask(last, q_tokens=q, k_tokens=k, block_size=16)
    assert_same(found, dense_mask(last, q_tokens=q, k_tokens=k), 16)


def test_a_draw_for_each_batch_row_s_length() -> None:
    tokens, rule = Tokens.padded([67, 40]), Causal() & Random(1, 8, seed=1) | Window(1, 1)
    found = block_mask(rule, q_tokens=tokens, k_tokens=tokens, heads=2, block_size=8)
    right = dense_mask(rule, q_tokens=tokens, k_tokens=tokens, batch=2, heads=2)
    assert not torch.equal(right[0, 0, -40:, -40:], right[1, 0, -40:, -40:])
    assert_same(found, right, 8)


def test_what_a_pattern_carries_goes_along() -> None:
    meta = torch.device("meta")
    table, mask = Blocks([[1, 0], [1, 1]], 8), Explicit(torch.ones(9, 9, dtype=torch.bool))
    there = moved(Causal() & table | ~mask, meta)
    leaves = there.members[0].members[1], there.members[1].inner  # type: ignore[attr-defined]
    assert leaves[0].layout.device == leaves[1].mask.device == meta
    assert table.layout.device.type == mask.mask.device.type == "cpu"
    assert moved(table, torch.device("cpu")) is table


def test_a_device_of_its_own() -> None:
    found = block_mask(Causal(), 67, block_size=16, device="meta")
    tensors = [x for x in vars(found).values() if isinstance(x, Tensor)]
    assert len(tensors) == 8 and {x.device.type for x in tensors} == {"meta"}


def test_pattern_to_create_block_mask() -> None:
    for pattern in (streaming(37, 3), ~Causal() | Window(3, None)):
        theirs = create_block_mask(pattern.mask_mod(), None, None, 200, 200, device="cpu")
        assert torch.equal(theirs.to_dense(), block_mask(pattern, 200).to_dense())


def test_a_user_s_mask_mod_to_predicate() -> None:
    def mask_mod(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (q_idx >= kv_idx) & ((q_idx - kv_idx) % (h + 2) == b)

    theirs = create_block_mask(mask_mod, 2, 3, 67, 67, device="cpu", BLOCK_SIZE=16)
    mine = block_mask(Predicate(mask_mod), 67, batch=2, heads=3, block_size=16)
    for table in TABLES:
        assert rows(mine, table) == rows(theirs, table)
    assert mine.mask_mod is mask_mod


def forward(case: Case, dtype: torch.dtype) -> Iterator[tuple[str, Tensor, Tensor]]:
    request = case.request(dtype)
    out, lse = flex.run(replace(request, wants_lse=True))
    right, right_lse = reference.run(request)
    assert lse is not None and out.dtype == dtype
    yield "output", out, right
    yield "lse", lse, right_lse.to(lse.dtype)


@pytest.mark.usefixtures("uncompiled")
def test_the_forward_pass_is_exact() -> None:
    for case in CASES[1::3]:
        for name, found, right in forward(case, torch.float64):
            torch.testing.assert_close(found, right, rtol=0, atol=1e-10, msg=f"{case}: {name}")


@pytest.mark.usefixtures("uncompiled")
def test_through_the_front_door() -> None:
    q, k, v = (torch.randn(2, h, 67, 16) for h in (4, 2, 2))
    out = attention(q, k, v, streaming(17, 3), scale=0.3, backend="flex")
    torch.testing.assert_close(out, attention(q, k, v, streaming(17, 3), scale=0.3))


def request(dtype: torch.dtype = torch.float32, length: int = 67, **changes: Any) -> Request:
    made = Case("", Causal(), length, length, width=16, value_width=16).request(dtype)
    return Request(**{**{f: getattr(made, f) for f in made.__dataclass_fields__}, **changes})


def test_what_it_refuses() -> None:
    assert flex.refusal(request()) is None
    assert "float32, less than torch.float64" in str(flex.refusal(request(torch.float64)))
    assert "log-sum-exp" in str(flex.refusal(request(wants_lse=True)))
    trained = request().query.requires_grad_()
    assert "no backward pass" in str(flex.refusal(request(query=trained)))
    assert "more than one query" in str(flex.refusal(request(length=1)))
    assert "no query" in str(flex.refusal(request(query=torch.zeros(2, 4, 0, 16))))
    meta = [torch.zeros(1, 1, 9, 16, device="meta")] * 3
    assert "not on meta" in str(
        flex.refusal(Request(*meta, Causal(), *[Tokens.arange(0, 9)] * 2, 1.0))
    )


def test_which_changes_of_scores_it_takes() -> None:
    def twice(score: Tensor, *place: Tensor) -> Tensor:
        return 2 * score

    one = Called(twice)
    assert flex.refusal(request(steps=(one,))) is None
    assert "one callable alone" in str(flex.refusal(request(steps=(Softcap(3.0),))))
    assert "one callable alone" in str(flex.refusal(request(steps=(one, Called(twice)))))
    later = Tokens.arange(5, 72)
    assert "not the positions" in str(
        flex.refusal(request(steps=(one,), q_tokens=later, k_tokens=later))
    )


def test_it_refuses_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    memory.clear()
    assert "no-such-compiler is not there" in str(flex.refusal(request()))
    monkeypatch.undo()
    memory.clear()


def test_it_is_chosen_only_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(device: str) -> None:
        raise AssertionError("auto came to flex")

    monkeypatch.setattr(flex, "compiled", fail)
    assert flex in KERNELS
    for length in (1, 5, 67, 700):
        q = torch.zeros(1, 2, length, 16)
        for pattern in (Full(), Causal(), streaming(17, 3), ~Causal()):
            attention(q, q, q, pattern)
            attention_with_lse(q, q, q, pattern)
            assert explain(q, q, q, pattern)["flex"] != "chosen"


def test_a_named_backend_never_falls_back() -> None:
    q = torch.zeros(1, 2, 67, 16, dtype=torch.float64)
    with pytest.raises(NotSupported, match="backend 'flex' cannot serve causal"):
        attention(q, q, q, Causal(), backend="flex")
    single = torch.zeros(1, 2, 67, 16)
    with pytest.raises(NotSupported, match="log-sum-exp"):
        attention_with_lse(single, single, single, Causal(), backend="flex")
