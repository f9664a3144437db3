"""Plans: the parts they are made of, and that making them never takes n² work."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from eyeline import attention, dense_mask
from eyeline.errors import InvalidArgument
from eyeline.patterns import (
    Bounds,
    Causal,
    Chunks,
    Explicit,
    Full,
    Pattern,
    Predicate,
    Random,
    Sinks,
    sliding_window,
    streaming,
)  # fmt: skip
from eyeline.planning import Gathered, Plan, Run, Slab, pairs, plan
from eyeline.testing.kernel import largest_tensor
from eyeline.testing.pattern import coverage
from eyeline.tokens import Points, Tokens


def kinds(made: Plan) -> Counter[type]:
    return Counter(type(part) for part in made.parts)


def test_a_window_is_one_run_of_views() -> None:
    made = plan(sliding_window(256), 16_384)
    (run,) = (part for part in made.parts if isinstance(part, Run))
    assert (run.rows, run.columns, run.step, run.count) == (64, 320, 64, 252)
    assert kinds(made)[Slab] == 4, "the rows before the window is full"


def test_sinks_are_a_slab_of_exactly_their_keys() -> None:
    made = plan(streaming(size=256, sinks=4), 16_384)
    (tall,) = (part for part in made.parts if isinstance(part, Slab) and part.rows > 1000)
    assert (tall.k0, tall.columns, tall.masked) == (0, 4, False)


def test_scattered_blocks_are_gathered_not_chained_by_chance() -> None:
    made = plan(Random(3, 64, head=0), 16_384)
    assert kinds(made)[Run] <= 2
    assert len(made.parts) < 12
    assert made.area == pairs(Random(3, 64, head=0), 16_384)


def test_full_is_one_slab() -> None:
    (slab,) = plan(Full(), 1000, 3000).parts
    assert slab == slab
    assert isinstance(slab, Slab)
    assert (slab.rows, slab.columns, slab.masked) == (1000, 3000, False)


def test_chunks_of_whole_tiles_need_no_mask() -> None:
    (run,) = plan(Chunks(256), 2048).parts
    assert isinstance(run, Run)
    assert (run.rows, run.columns, run.step, run.count, run.mask) == (256, 256, 256, 8, None)


def test_causal_computes_little_more_than_it_needs() -> None:
    made = plan(Causal(), 16_384)
    assert made.area <= 1.05 * pairs(Causal(), 16_384)


def test_scattered_blocks_are_gathered() -> None:
    generator = torch.Generator().manual_seed(3)
    layout = torch.rand(17, 17, generator=generator) < 0.3
    mask = layout.repeat_interleave(64, 0).repeat_interleave(64, 1)
    made = plan(Explicit(mask), 1088)
    assert kinds(made)[Gathered] >= 1
    assert made.area == int(mask.sum())
    assert torch.equal(coverage(made), mask.long())


def test_no_query_twice_in_one_gathered_part() -> None:
    generator = torch.Generator().manual_seed(4)
    layout = torch.rand(19, 19, generator=generator) < 0.4
    made = plan(Explicit(layout.repeat_interleave(64, 0).repeat_interleave(64, 1)), 1216)
    for part in made.parts:
        if isinstance(part, Gathered):
            rows = (part.q0[:, None] + torch.arange(part.rows)).flatten()
            assert len(rows.unique()) == len(rows)


@dataclass(frozen=True)
class Counting(Pattern):
    """Causal window that counts the tiles and pairs it is asked about."""

    size: int
    asked: ClassVar[Counter[str]] = Counter()

    def allows(self, q: Points, k: Points) -> Tensor:
        allowed = sliding_window(self.size).allows(q, k)
        Counting.asked["pairs"] += allowed.numel()
        return allowed

    def verdict(self, q: Bounds, k: Bounds) -> Tensor:
        verdict = sliding_window(self.size).verdict(q, k)
        Counting.asked["tiles"] += verdict.numel()
        return verdict

    def signature(self, q: Bounds, k: Bounds) -> tuple[Tensor, ...] | None:
        return sliding_window(self.size).signature(q, k)


def work(length: int) -> Counter[str]:
    Counting.asked.clear()
    plan(Counting(300), length)
    return Counter(Counting.asked)


def test_planning_work_is_linear() -> None:
    small, large = work(2**14), work(2**18)
    assert large["tiles"] < 20 * small["tiles"]
    assert large["tiles"] < 60 * 2**18 / 64, "tiles asked about, for 4,096 rows of tiles"
    assert large["pairs"] < 2**18, "masks are shared, not evaluated tile by tile"


@pytest.mark.parametrize("pattern", [sliding_window(256), streaming(256, 4), Causal(), Full()])
def test_planning_memory_is_linear(pattern: Pattern) -> None:
    assert largest_tensor(lambda: plan(pattern, 2**17)) < 16 * 2**17
    assert largest_tensor(lambda: pairs(pattern, 2**17)) < 64 * 2**17


def test_planning_packed_documents_is_linear() -> None:
    tokens = Tokens.packed(torch.arange(8, 900, 7).repeat(4))
    pattern = Causal()
    size = largest_tensor(lambda: plan(pattern, q_tokens=tokens, k_tokens=tokens))
    assert size < 16 * tokens.length


@pytest.mark.parametrize(
    ("pattern", "length", "keys", "right"),
    [
        (Full(), 10**6, 10**6, 10**12),
        (Causal(), 10**6, 10**6, 10**6 * (10**6 + 1) // 2),
        (sliding_window(256), 10**6, 10**6, 256 * 10**6 - 256 * 255 // 2),
        (streaming(256, 4), 10**6, 10**6, 260 * 10**6 - 256 * 255 // 2 - 4 * 256 - 6),
        (Sinks(5), 1000, 3000, 5000),
        (Causal(), 3, 10**6, 3 * 10**6 - 3),
        (~Causal(), 10**6, 10**6, 10**6 * (10**6 - 1) // 2),
        (Full(), 0, 5, 0),
        (Causal(), 0, 0, 0),
    ],
)
def test_pairs_in_closed_form(pattern: Pattern, length: int, keys: int, right: int) -> None:
    assert pairs(pattern, length, keys) == right


def test_plans_are_remembered_by_value() -> None:
    from eyeline.planning.planner import planned
    from eyeline.tokens import default_tokens

    tokens = default_tokens(100, 100)
    assert planned(sliding_window(7), *tokens) is planned(sliding_window(7), *tokens)
    assert planned(sliding_window(7), *tokens) is not planned(sliding_window(8), *tokens)
    other = default_tokens(101, 101)
    assert planned(sliding_window(7), *tokens) is not planned(sliding_window(7), *other)


def test_a_plan_says_what_it_holds() -> None:
    text = str(plan(streaming(256, 4), 16_384))
    assert "16,384 queries" in text
    assert "1 × run" in text


def test_what_is_not_one_sequence_is_refused() -> None:
    batched = Tokens.padded([3, 5])
    with pytest.raises(InvalidArgument, match=r"row\(b\)"):
        plan(Full(), q_tokens=batched, k_tokens=batched)
    with pytest.raises(InvalidArgument, match=r"at\(batch, head\)"):
        plan(Predicate(lambda b, h, q, k: q >= k), 7)
    with pytest.raises(InvalidArgument, match="length"):
        plan(Full())
    with pytest.raises(InvalidArgument, match="L=-1"):
        pairs(Full(), -1)
    with pytest.raises(InvalidArgument, match="7 queries but 3 keys"):
        pairs(Causal(), 7, 3)
    with pytest.raises(InvalidArgument, match="or both"):
        plan(Full(), 5, q_tokens=Tokens.arange(0, 5))
    with pytest.raises(InvalidArgument, match="tile=0"):
        plan(Full(), 5, tile=0)


@dataclass(frozen=True)
class Listed(Pattern):
    """A user's pattern with a field that cannot be hashed."""

    allowed: list[int]

    def allows(self, q: Points, k: Points) -> Tensor:
        return (q.position - k.position).abs()


def test_a_users_mistakes_are_named() -> None:
    with pytest.raises(InvalidArgument, match="Listed cannot be hashed"):
        plan(Listed([1]), 5)
    with pytest.raises(InvalidArgument, match="int64, it must be bool"):
        dense_mask(Listed([1]), 5)


def test_bound_patterns_are_not_kept_alive() -> None:
    mask = torch.ones(70, 70, dtype=torch.bool)
    watched = weakref.ref(mask)
    x = torch.zeros(1, 1, 70, 4)
    for backend in ("auto", "tiles", "reference"):
        attention(x, x, x, mask, backend=backend)
    del mask
    gc.collect()
    assert watched() is None


def test_a_users_default_device_does_not_matter() -> None:
    x = torch.zeros(1, 1, 613, 4)
    with torch.device("meta"):
        assert plan(sliding_window(7), 613).parts
        attention(x, x, x, sliding_window(7), backend="tiles")


def test_nothing_known_stays_linear_in_memory() -> None:
    rule = Predicate(lambda b, h, q, k: q >= k, per_batch=False, per_head=False)
    assert largest_tensor(lambda: plan(rule, 2**17)) < 16 * 2**17
