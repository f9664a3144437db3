"""check_pattern: everything derived from a pattern agrees with its definition, ``allows``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from eyeline.kernels import tiles
from eyeline.kernels.request import Request
from eyeline.patterns import EMPTY, FULL, Bounds, Pattern, kept_apart
from eyeline.planning import Plan, dense_mask, pairs, plan
from eyeline.planning.parts import Block, Gathered, Reordered, Run
from eyeline.testing.kernel import parity_of
from eyeline.tokens import Tokens

LENGTHS = (1, 2, 17, 64, 67, 131)
TILES = (4, 16, 64)


def check_pattern(pattern: Pattern, *, lengths: tuple[int, ...] = LENGTHS) -> None:
    """Check that verdicts, plans, counts, eviction and the fast kernel agree with ``allows``.

    pattern: any Pattern, also one of your own. lengths: sequence lengths to try; an Explicit mask
    serves only its own. Raises AssertionError with what disagrees and where.
    """
    for length in lengths:
        for name, q, k in situations(length):
            for holds in PROPERTIES:
                try:
                    holds(pattern, q, k)
                except AssertionError as error:
                    what = f"{holds.__name__}, {pattern}, {name} of {length}"
                    raise AssertionError(f"{what}: {error}") from error


def situations(length: int) -> Iterator[tuple[str, Tokens, Tokens]]:
    """Queries and keys of one sequence: plain, cached, padded, packed, with gaps."""
    whole = Tokens.arange(0, length)
    yield "self-attention", whole, whole
    yield "the last queries", whole.last(max(length // 3, 1)), whole
    shifted = torch.arange(length) - length // 3
    padded = Tokens(shifted.clamp(min=-1))
    yield "left padding", padded, padded
    sizes = [length // 2, 0, length - length // 2 - length // 5, length // 5]
    packed = Tokens.packed(sizes)
    yield "packed documents", packed, packed
    slots = torch.arange(length)
    apart = Tokens(slots, segments=slots * 3 // length)
    yield "segments", apart, apart
    holes = Tokens(torch.where(torch.arange(length) % 5 == 2, -1, torch.arange(length)))
    yield "holes", holes, holes


def verdicts_are_sound(pattern: Pattern, q: Tokens, k: Tokens) -> None:
    """EMPTY means that no pair within the bounds is allowed, FULL that every one is."""
    generator = torch.Generator().manual_seed(q.length)
    real_q, real_k = (t.positions >= 0 for t in (q, k))
    mask, rule = dense_mask(pattern, q_tokens=q, k_tokens=k), kept_apart(pattern, q, k)
    for _ in range(40):
        rows, columns = (_range(t.length, generator) for t in (q, k))
        if not real_q[rows].any() or not real_k[columns].any():
            continue
        verdict = int(rule.verdict(_bounds(q, rows), _bounds(k, columns)))
        block = mask[rows, columns][real_q[rows]][:, real_k[columns]]
        place = f"queries {rows.start}:{rows.stop}, keys {columns.start}:{columns.stop}"
        assert verdict != EMPTY or not block.any(), f"EMPTY is wrong at {place}"
        assert verdict != FULL or block.all(), f"FULL is wrong at {place}"


def _range(length: int, generator: torch.Generator) -> slice:
    a, b = sorted(torch.randint(0, length + 1, (2,), generator=generator).tolist())
    return slice(min(a, length - 1), max(b, min(a, length - 1) + 1))


def _bounds(tokens: Tokens, where: slice) -> Bounds:
    points = tokens.at(where)
    real = points.position >= 0
    (low, high), (first, last), (least, most) = (column[real].aminmax() for column in points)
    return Bounds(low, high, first, last, least, most)


def plans_hold_each_pair_once(pattern: Pattern, q: Tokens, k: Tokens) -> None:
    """The parts of a plan together are the mask, for tiles of several sizes."""
    mask = dense_mask(pattern, q_tokens=q, k_tokens=k)
    for tile in TILES:
        count = coverage(plan(pattern, q_tokens=q, k_tokens=k, tile=tile))
        wrong = (count != mask.long()).nonzero()
        where = wrong[0].tolist() if len(wrong) else ()
        assert not len(wrong), f"tiles of {tile}: pair {where} is held {count[tuple(where)]} times"


def coverage(made: Plan) -> Tensor:
    """How many times a plan's parts hold each pair: int64 (L, S)."""
    count = torch.zeros(made.q_tokens.length, made.k_tokens.length, dtype=torch.int64)
    for part in made.parts:
        if isinstance(part, Reordered):
            count += _covered_in_order(made, part)
            continue
        for q0, k0, rows, columns, mask in _blocks(made, part):
            block = count[q0 : q0 + rows, k0 : k0 + columns]
            assert block.shape == (rows, columns), f"{part} reaches past the end"
            block += 1 if mask is None else mask.long()
    return count


def _covered_in_order(made: Plan, part: Reordered) -> Tensor:
    """How many times a reordered part holds each pair of the sequence as it stands."""
    inner = coverage(part.plan)
    for axis, order in ((0, part.q_order), (1, part.k_order)):
        if order is None:
            continue
        pads = inner.index_select(axis, (order.slots[0] < 0).nonzero()[:, 0])
        assert not pads.any(), f"{part} computes places that hold no slot"
        found = inner.index_select(axis, order.places[0].clamp(min=0))
        absent = (order.places[0] < 0).unsqueeze(1 - axis)
        inner = found.masked_fill(absent, 0)
    assert inner.shape == (made.q_tokens.length, made.k_tokens.length)
    return inner


def _blocks(made: Plan, part: Block) -> Iterator[tuple[int, int, int, int, Tensor | None]]:
    shape = (part.rows, part.columns)
    if isinstance(part, Run):
        for i in range(part.count):
            yield part.q0 + i * part.step, part.k0 + i * part.step, *shape, part.mask
    elif isinstance(part, Gathered):
        for q0, k0 in zip(part.q0.tolist(), part.k0.tolist(), strict=True):
            yield q0, k0, *shape, None
    else:
        mask = made.mask(part.q0, part.rows, part.k0, part.columns)
        yield part.q0, part.k0, *shape, mask if part.masked else None


def pairs_are_counted(pattern: Pattern, q: Tokens, k: Tokens) -> None:
    """``pairs`` is the number of True in the mask."""
    right = int(dense_mask(pattern, q_tokens=q, k_tokens=k).sum())
    counted = pairs(pattern, q_tokens=q, k_tokens=k)
    assert counted == right, f"pairs says {counted}, the mask holds {right}"


def needed_keys_are_kept(pattern: Pattern, q: Tokens, k: Tokens) -> None:
    """A key that a later query may look at is needed, whatever position comes next."""
    mask = dense_mask(pattern, q_tokens=q, k_tokens=k)
    for step in {0, q.length // 2, q.length - 1}:
        first = int(q.positions[step])
        if first < 0:
            continue
        later = mask[q.positions >= first]
        lost = later.any(0) & ~pattern.needed(k, first)
        assert not lost.any(), f"key slot {lost.nonzero()[0].item()} is evicted, but looked at"


def values_behave(pattern: Pattern, q: Tokens, k: Tokens) -> None:
    """Patterns hash and compare as values."""
    assert hash(pattern) == hash(pattern) and pattern == pattern, "it does not equal itself"
    assert (pattern & pattern) == (pattern & pattern), "what is built from it is not a value"
    assert str(pattern), "it has no text"


def tiles_agree(pattern: Pattern, q: Tokens, k: Tokens) -> None:
    """The fast kernel gives what the reference gives, and the same gradients."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(1, 1, n, 4, generator=generator, dtype=torch.float64).requires_grad_()
        for n in (q.length, k.length, k.length)
    )
    parity_of(tiles, Request(query, key, value, pattern, q, k, 0.5))


PROPERTIES: tuple[Callable[[Pattern, Tokens, Tokens], None], ...] = (
    verdicts_are_sound, plans_hold_each_pair_once, pairs_are_counted, needed_keys_are_kept,
    values_behave, tiles_agree,
)  # fmt: skip
