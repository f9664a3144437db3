"""What is remembered between calls: bounded, listed, forgotten; and only what is safe to keep."""

from __future__ import annotations

import ast
import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier, Thread
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import eyeline
from eyeline import attention, memory, sliding_window
from eyeline.errors import InvalidArgument
from eyeline.memory import remembered, remembered_property
from eyeline.tokens import Tokens, default_tokens

SOURCE = Path(eyeline.__file__).parent
KILO = 128 * 8  # the bytes of a tensor of 128 numbers of 8 bytes


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    limit = memory.limit()
    memory.clear()
    yield
    memory.limit(limit)
    memory.clear()


def counted(most: int, **options: Any) -> tuple[list[Any], Callable[..., Tensor]]:
    """A remembered function of a number, and the numbers that it was run for."""
    runs: list[Any] = []

    @remembered(most, **options)
    def table(number: Any, size: int = 128) -> Tensor:
        runs.append(number)
        return torch.arange(size)

    return runs, table


def test_a_result_is_computed_once() -> None:
    runs, table = counted(4)
    assert table(1) is table(1)
    assert table(1, size=128) is table(1, size=128) is not table(1)
    assert runs == [1, 1]


def test_the_least_recently_used_of_a_function_goes_first() -> None:
    runs, table = counted(3)
    for number in (1, 2, 3, 1, 4, 1, 3, 4, 2):
        table(number)
    assert runs == [1, 2, 3, 4, 2]


def test_the_least_recently_used_of_all_functions_goes_first() -> None:
    (one, first), (two, second) = counted(9), counted(9)
    first(1), second(2), first(3)
    first(1)
    used = memory.report().bytes
    memory.limit(used - 1)
    first(1), first(3)
    assert one == [1, 3]
    second(2)
    assert two == [2, 2]


def test_the_bytes_stay_below_the_limit() -> None:
    _, table = counted(1000)
    memory.limit(20 * KILO)
    for number in range(100):
        table(number)
        assert memory.report().bytes <= 20 * KILO
    (row,) = [row for row in memory.report().kept if row.name.endswith("table")]
    assert 5 <= row.entries <= 20
    assert row.bytes >= row.entries * KILO


def test_a_result_larger_than_the_limit_is_not_kept_and_drives_nothing_out() -> None:
    runs, table = counted(9)
    memory.limit(20 * KILO)
    table(1), table(2, 100 * 128), table(1)
    assert runs == [1, 2]
    table(2, 100 * 128)
    assert runs == [1, 2, 2]


def test_a_limit_of_0_remembers_nothing() -> None:
    runs, table = counted(9)
    table(1)
    memory.limit(0)
    assert memory.report() == ((), 0, 0)
    table(1), table(1)
    assert runs == [1, 1, 1]


@pytest.mark.parametrize("size", [-1, 1.5, True, "1 GiB"])
def test_limits_that_are_none(size: Any) -> None:
    with pytest.raises(InvalidArgument, match="whole number from 0"):
        memory.limit(size)


class Pair(NamedTuple):
    one: Tensor
    two: object


@dataclass(frozen=True)
class Described:
    inside: object


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: x,
        lambda x: (1, [x]),
        lambda x: Pair(torch.ones(1), {"it": x}),
        lambda x: Described(Described((x,))),
        lambda x: torch.nn.ParameterList([torch.nn.Parameter(x.float())]),
        lambda x: Tokens(x),
    ],
)
def test_tensors_are_found_wherever_they_lie(wrap: Callable[[Tensor], object]) -> None:
    @remembered(1)
    def made() -> object:
        return wrap(torch.ones(4096).long())

    made()
    assert 4096 * 4 <= memory.report().bytes < 4096 * 8 + 8192


def test_what_the_arguments_hold_counts_too() -> None:
    @remembered(1)
    def length(tokens: Tokens) -> int:
        return tokens.length

    length(Tokens.arange(0, 5000))
    assert 5000 * 8 <= memory.report().bytes < 5000 * 8 + 4096


def test_memory_that_several_share_counts_once() -> None:
    whole = torch.zeros(1 << 16, dtype=torch.int64)

    @remembered(9)
    def part(number: int) -> Tensor:
        return whole[number:]

    part(1)
    once = memory.report().bytes
    part(2), part(3)
    assert once <= memory.report().bytes < once + 8192
    memory.limit(once + 100)
    part(3)
    assert 0 < memory.report().bytes <= once + 100


def test_clear_forgets_everything() -> None:
    q = torch.randn(1, 2, 600, 4)
    before = attention(q, q, q, sliding_window(5))
    names = {row.name for row in memory.report().kept}
    assert {"planning.planner.planned", "tokens.tokens._default_tokens"} <= names
    assert "planning.planner.planned" in str(memory.report())
    memory.clear()
    assert memory.report().kept == () and memory.report().bytes == 0
    assert torch.equal(attention(q, q, q, sliding_window(5)), before)


def test_it_is_reached_through_the_table_of_contents() -> None:
    assert eyeline.memory is memory


def test_what_is_computed_while_all_is_forgotten_is_not_kept() -> None:
    runs: list[int] = []

    @remembered(9)
    def number() -> int:
        runs.append(1)
        if len(runs) == 1:
            memory.clear()
        return 7

    assert number() == number() == number() == 7
    assert len(runs) == 2


def test_threads_get_one_object() -> None:
    barrier = Barrier(8)
    results: list[Tokens] = []

    @remembered(9)
    def made(length: int) -> Tokens:
        barrier.wait()
        return Tokens.arange(0, length)

    threads = [Thread(target=lambda: results.append(made(5))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(tokens) for tokens in results}) == 1


# What is known of a tensor goes with it.


def test_what_was_found_of_a_tensor_dies_with_it_and_with_its_version() -> None:
    runs: list[int] = []

    @remembered(9, weak=True)
    def doubled(x: Tensor, times: int) -> Tensor:
        runs.append(times)
        return x * times

    x = torch.arange(4096)
    assert doubled(x, 2) is doubled(x, 2)
    doubled(x, 3)
    x += 1
    assert int(doubled(x, 2)[0]) == 2
    assert runs == [2, 3, 2]
    watched = weakref.ref(x)
    del x
    gc.collect()
    assert watched() is None
    assert memory.report().kept == () and memory.report().bytes == 0


def test_nothing_is_known_of_a_tensor_without_a_version() -> None:
    @remembered(9, weak=True)
    def total(x: Tensor) -> int:
        return int(x.sum())

    with torch.inference_mode():
        x = torch.ones(3)
        assert total(x) == 3
        x += 1
        assert total(x) == 6


def test_results_of_bound_patterns_are_not_kept() -> None:
    mask = torch.rand(600, 600) < 0.5
    watched = weakref.ref(mask)
    q = torch.randn(1, 2, 600, 4)
    attention(q, q, q, eyeline.Explicit(mask))
    del mask
    gc.collect()
    assert watched() is None


# What must not be kept, or not be seen.


def test_sizes_that_are_symbols_are_no_keys() -> None:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    runs, table = counted(9)
    fake = torch._subclasses.FakeTensorMode(shape_env=ShapeEnv())
    size = fake.from_tensor(torch.ones(5)).shape[0]
    assert isinstance(size, torch.SymInt)
    table(size), table(size), table((size,))
    assert len(runs) == 3
    assert memory.report().kept == ()


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.functionalize])
def test_tensors_of_a_transform_are_not_kept(transform: Callable[..., Any]) -> None:
    _, table = counted(9)

    def total(x: Tensor) -> Tensor:
        return (x * table(1, 4) * default_tokens(4, 4)[0].positions).sum()

    transform(total)(torch.ones(4))
    assert memory.report().kept == ()
    table(1, 4)
    assert torch.equal(torch.func.grad(total)(torch.ones(4)), torch.tensor([0.0, 1, 4, 9]))


def test_modes_that_watch_do_not_see_what_is_kept() -> None:
    @remembered(9)
    def product() -> Tensor:
        return torch.ones(8, 8) @ torch.ones(8, 8)

    with FlopCounterMode(display=False) as flops:
        product()
    assert flops.get_total_flops() == 0
    assert len(memory.report().kept) == 1


def test_a_property_is_not_kept_while_traced() -> None:
    class Owner:
        @remembered_property
        def table(self) -> Tensor:
            """A table."""
            return torch.arange(5)

    owner = Owner()
    assert Owner.table.__doc__ == "A table."
    with torch._subclasses.FakeTensorMode():
        assert type(owner.table) is not Tensor
    assert type(owner.table) is Tensor
    assert owner.table is owner.table
    with torch._subclasses.FakeTensorMode():
        assert type(owner.table) is not Tensor
    with pytest.raises(AttributeError):
        owner.table = torch.ones(1)  # type: ignore[misc]


def test_arguments_that_cannot_be_hashed() -> None:
    _, table = counted(9)
    with pytest.raises(InvalidArgument, match="list cannot be hashed"):
        table([1])


def test_nothing_else_remembers() -> None:
    """``functools`` has its own ways, which know nothing of bytes and traces."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "functools":
                names = {alias.name for alias in node.names}
                assert not names & {"lru_cache", "cache"}, f"{path}: use memory.remembered"
