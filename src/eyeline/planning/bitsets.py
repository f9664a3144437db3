"""Sets of tokens as bits, one row a set: products of boolean matrices, 64 pairs at a time."""

from __future__ import annotations

import torch
from torch import Tensor

_BYTE = 8
_WORD = 64
# Where fewer than one row in this many selects something, the others are left out.
_FEW = 4


def packed(rows: Tensor) -> Tensor:
    """bool (n, m) as uint8 (n, 8·⌈m / 64⌉): column 8g + b is bit b of byte g."""
    rows = torch.nn.functional.pad(rows, (0, -rows.shape[1] % _WORD))
    weights = torch.tensor([1 << bit for bit in range(_BYTE)], dtype=torch.uint8)
    bits = rows.view(torch.uint8).unflatten(1, (-1, _BYTE))
    found: Tensor = (bits * weights).sum(2, dtype=torch.uint8)
    return found


def product(chosen: Tensor, sets: Tensor) -> Tensor:
    """union[i] = the union of sets[j] over all j in chosen[i].

    chosen (m, bytes), sets (n, bytes'): packed. Eight sets at a time: the unions of all their 256
    selections are made once and then looked up, so that the work is m·n²/512 words. Arlazarov et
    al. 1970, "On economical construction of the transitive closure of a directed graph".
    """
    words = sets.view(torch.int64)
    union = words.new_zeros(len(chosen), words.shape[1])
    found = torch.empty_like(union)
    for eight, selection in zip(words.split(_BYTE), chosen.t().contiguous(), strict=False):
        rows = selection.nonzero()[:, 0]
        if len(rows) * _FEW < len(union):
            union[rows] |= _selections(eight)[selection[rows].int()]
            continue
        torch.index_select(_selections(eight), 0, selection.int(), out=found)
        union |= found
    return union.view(torch.uint8)


def depth(edges: Tensor) -> int:
    """The least d at which the d-th power of a relation has become its closure.

    edges: packed (n, bytes), every token in its own set. The power is doubled until it stays the
    same, and d is then found bit by bit: 2·log₂ d products in all.
    """
    powers = [edges]
    while not torch.equal(squared := product(powers[-1], powers[-1]), powers[-1]):
        powers.append(squared)
    if len(powers) == 1:
        return int(not torch.equal(edges, packed(torch.eye(len(edges), dtype=torch.bool))))
    *powers, closure = powers
    *powers, reached = powers
    passed = 1 << len(powers)
    for exponent in reversed(range(len(powers))):
        further = product(powers[exponent], reached)
        if not torch.equal(further, closure):
            reached, passed = further, passed + (1 << exponent)
    return passed + 1


def _selections(sets: Tensor) -> Tensor:
    """unions[s] = the union of those sets whose bit is in s: (2^n, words) from (n, words)."""
    unions = sets.new_zeros(1 << len(sets), sets.shape[1])
    for bit, row in enumerate(sets):
        torch.bitwise_or(unions[: 1 << bit], row, out=unions[1 << bit : 2 << bit])
    return unions
