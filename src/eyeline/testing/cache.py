"""check_cache: reading in steps through a cache equals reading at once, and no key is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from eyeline.caches import Cache, Layout, Marked
from eyeline.exact import attention
from eyeline.patterns import Causal, Chunks, Pattern, SameSegment, Sinks, sliding_window, streaming
from eyeline.tokens import NOBODY, Tokens

WINDOW = 7
LENGTH = 5 * WINDOW + 2
HEADS, KEY_HEADS, WIDTH, VALUE_WIDTH = 6, 3, 5, 3

MakeCache = Callable[[Pattern, Layout], Cache]
Inputs = tuple[Tensor, Tensor, Tensor]


def check_cache(make: MakeCache, *patterns: Pattern) -> None:
    """Run every property on a kind of cache.

    make: from a pattern and a Layout to an empty cache. patterns: those it is for; a choice of
    causal ones when omitted. Raises AssertionError with the property and the situation.
    """
    for pattern in patterns if patterns else PATTERNS:
        for name, tokens in situations():
            for step in (1, 2, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW):
                try:
                    steps_equal_one_run(make, pattern, tokens, step)
                except AssertionError as error:
                    what = f"{pattern}, {name}, {step} at a time"
                    raise AssertionError(f"{what}: {error}") from error
        for holds in (
            rows_can_be_exchanged, forgotten_tokens_are_written_anew, marks_follow_their_tokens
        ):  # fmt: skip
            holds(make, pattern)


PATTERNS: tuple[Pattern, ...] = (
    Causal(), sliding_window(1), sliding_window(WINDOW), streaming(WINDOW, 3), streaming(2, 5),
    Causal() & Chunks(WINDOW), Causal() & (Chunks(WINDOW) | Sinks(2)),
    Causal() & ~sliding_window(3), Causal() & SameSegment(),
)  # fmt: skip


def situations() -> Iterator[tuple[str, Tokens]]:
    """Whole texts of LENGTH slots: plain, padded on the left, packed."""
    yield "plain", Tokens.arange(0, LENGTH)
    yield "left pads", Tokens.padded([LENGTH, LENGTH - 4, 5])
    yield "packed", Tokens.packed([5, 0, 1, 11, 13], length=LENGTH)
    yield "a batch of packings", Tokens.packed([[5, 1, 11], [23, 14]], length=LENGTH)
    yield "segments", Tokens(torch.arange(LENGTH), segments=torch.arange(LENGTH) // 5)


def steps_equal_one_run(make: MakeCache, pattern: Pattern, tokens: Tokens, step: int) -> None:
    """Each step's attention equals the same rows of the run over the whole text."""
    inputs = random_inputs(tokens.batch if tokens.batch is not None else 2)
    cache = make(pattern, layout_for(inputs))
    whole = attention(*inputs, pattern, q_tokens=tokens, k_tokens=tokens)
    sizes = [min(step, LENGTH - start) for start in range(0, LENGTH, step)]
    _assert_equal(read_in_steps(cache, tokens, inputs, sizes), whole)


def rows_can_be_exchanged(make: MakeCache, pattern: Pattern) -> None:
    """After reorder, row b goes on as what row index[b] was."""
    inputs, tokens = random_inputs(3), Tokens.padded([LENGTH, LENGTH - 4, 5])
    index, half = torch.tensor([2, 0, 2]), LENGTH - 2
    whole = attention(*inputs, pattern, q_tokens=tokens, k_tokens=tokens)
    cache = make(pattern, layout_for(inputs))
    read_in_steps(cache, _cut(tokens, 0, half), _cut_inputs(inputs, 0, half), [half])
    cache.reorder(index)
    rest = Tokens(tokens.positions[index, half:])
    q, k, v = (x[index] for x in _cut_inputs(inputs, half, LENGTH))
    _assert_equal(read_in_steps(cache, rest, (q, k, v), [1, 1]), whole[index][:, :, half:])


def forgotten_tokens_are_written_anew(make: MakeCache, pattern: Pattern) -> None:
    """After truncate, the text goes on from there as if the rest had never been read."""
    inputs, tokens, kept = random_inputs(2), Tokens.arange(0, LENGTH), 5
    whole = attention(*inputs, pattern, q_tokens=tokens, k_tokens=tokens)
    cache = make(pattern, layout_for(inputs))
    first = _cut_inputs(inputs, 0, kept + 1)
    read_in_steps(cache, _cut(tokens, 0, kept + 1), first, [kept, 1])
    if not _all_needed(pattern, kept):
        return  # a key that is needed again may be gone, and truncate says so
    cache.truncate(kept)
    rest = _cut_inputs(inputs, kept, LENGTH)
    found = read_in_steps(cache, _cut(tokens, kept, LENGTH), rest, [LENGTH - kept])
    _assert_equal(found, whole[:, :, kept:])


def marks_follow_their_tokens(make: MakeCache, pattern: Pattern) -> None:
    """In a ``Marked`` tokens keep their marks, and blocks what they pool, as tokens come and go."""
    (query, key, value), rows, block = random_inputs(3), 3, 4
    cache = make(pattern, layout_for((query, key, value)))
    if not isinstance(cache, Marked):
        return
    reached, start = torch.zeros(rows, dtype=torch.int64), 0
    for step, size in enumerate((7, 1, 1, 7, 1, 12)):
        positions = reached[:, None] + torch.arange(size)
        if step == 0:
            positions[2] = (positions[2] - 4).clamp(min=NOBODY)
        seen = cache.advance(Tokens(positions))
        _, new, now = _cut_inputs((query, key, value), start, start + size)
        cache.append(0, new, now)
        of = seen.positions.expand(rows, -1)
        for name in cache.marks:
            _check_mark(cache, name, of, size)
        numbers = of.div(block, rounding_mode="floor").where(of != NOBODY, NOBODY)
        for name in cache.pools:
            _check_pool(cache, name, numbers)
        reached, start = positions.amax(1) + 1, start + size
        if step == 1:
            index = torch.tensor([2, 0, 0])
            cache.reorder(index)
            reached = reached[index]
        if step == 3:  # blocks are cut where they are
            reached = (reached - torch.tensor([1, 5, 0])).clamp(min=0)
            cache.truncate(reached[:, None])


def _check_mark(cache: Marked, name: str, of: Tensor, size: int) -> None:
    """Marks the ``size`` new tokens with their positions; all those ``of`` the slots are there."""
    mark, real = cache.marks[name], (of != NOBODY)[:, None, :, None]
    expected = of[:, None, :, None].expand(-1, KEY_HEADS, -1, mark.width).to(mark.dtype)
    marks = cache.mark(0, name, expected[:, :, of.shape[1] - size :])
    assert marks.dtype == mark.dtype, f"mark {name!r} is {marks.dtype}"
    same = torch.equal(marks.where(real, 0), expected.where(real, 0))
    assert same, f"mark {name!r} is another token's"


def _check_pool(cache: Marked, name: str, numbers: Tensor) -> None:
    """The pool against all tokens of the cache, block by block."""
    count = max(int(numbers.max()) + 1, 0)
    pooled, source = cache.pooled(0, name, numbers, count), cache.tokens_of(0, name)
    assert pooled.dtype == source.dtype, f"pool {name!r} is {pooled.dtype}"
    for row, number in ((b, n) for b in range(len(numbers)) for n in range(count)):
        members = source[row][:, numbers[row] == number]
        expected = torch.zeros_like(pooled[row, :, number])
        if members.shape[1]:
            expected = _POOL[cache.pools[name].by](members, 1)
        _assert_equal(pooled[row, :, number], expected)


_POOL: dict[str, Callable[[Tensor, int], Tensor]] = {
    "sum": torch.sum, "mean": torch.mean, "max": torch.amax,
}  # fmt: skip


def _all_needed(pattern: Pattern, position: int) -> bool:
    return bool(pattern.needed(Tokens.arange(0, position), position + 1).all())


def read_in_steps(
    cache: Cache,
    tokens: Tokens,
    inputs: Inputs,
    sizes: list[int],
    *,
    look: Callable[[Tokens, Tokens], None] = lambda past, new: None,
) -> Tensor:
    """The attention of each step over what the cache returns, all steps together.

    look: called after each step with all tokens so far and the step's own.
    """
    outputs, start = [], 0
    for size in sizes:
        new = _cut(tokens, start, start + size)
        query, key, value = _cut_inputs(inputs, start, start + size)
        seen = cache.advance(new)
        keys, values, k_tokens = cache.append(0, key, value)
        assert k_tokens is seen, "append returns other tokens than advance"
        assert seen.length == keys.shape[2] == values.shape[2], "tokens and keys differ in number"
        found = attention(query, keys, values, cache.pattern, q_tokens=new, k_tokens=seen)
        outputs.append(found)
        start += size
        look(_cut(tokens, 0, start), new)
    return torch.cat(outputs, 2)


def random_inputs(batch: int, length: int = LENGTH) -> Inputs:
    """query, key and value, float64, always the same."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(batch, heads, length, width, dtype=torch.float64, generator=generator)
        for heads, width in ((HEADS, WIDTH), (KEY_HEADS, WIDTH), (KEY_HEADS, VALUE_WIDTH))
    )
    return query, key, value


def layout_for(inputs: Inputs) -> Layout:
    """The layout of a cache of one layer for these inputs."""
    _, key, value = inputs
    batch, heads, _, width = key.shape
    return Layout(1, batch, heads, width, value.shape[3], key.dtype, key.device)


def _cut(tokens: Tokens, start: int, stop: int) -> Tokens:
    return tokens.mapped(lambda column: column[..., start:stop])


def _cut_inputs(inputs: Inputs, start: int, stop: int) -> Inputs:
    query, key, value = (x[:, :, start:stop] for x in inputs)
    return query, key, value


def _assert_equal(found: Tensor, right: Tensor) -> None:
    error = float((found - right).abs().max())
    assert error <= 1e-12, f"steps differ from one run by {error:.3g}"
