"""Sparse Sinkhorn attention of one batch row and one key head, written out in loops."""

from __future__ import annotations

import math

import torch
from torch import Tensor

Member = tuple[int, int]
"""The document and the number of a block."""


def blocks_of(positions: list[int], documents: list[int], size: int) -> dict[Member, list[int]]:
    """The slots of each block, in the order of documents, numbers and positions."""
    found: dict[Member, list[int]] = {}
    for slot in sorted(range(len(positions)), key=lambda s: positions[s]):
        if positions[slot] >= 0:
            found.setdefault((documents[slot], positions[slot] // size), []).append(slot)
    return dict(sorted(found.items()))


def may_take(one: Member, other: Member, causal: bool) -> bool:
    return one[0] == other[0] and (not causal or other[1] < one[1])


def doubly_stochastic(
    scores: Tensor, members: list[Member], iterations: int, causal: bool
) -> list[list[Tensor]]:
    """In log space, entry by entry: rows, then so many times columns and rows. -inf: may not."""
    n = len(members)
    pairs = [(i, j) for i in range(n) for j in range(n) if may_take(members[i], members[j], causal)]
    log = {(i, j): scores[i, j] for i, j in pairs}

    def shared(of: dict[tuple[int, int], list[tuple[int, int]]]) -> dict[tuple[int, int], Tensor]:
        return {
            p: log[p] - torch.stack([log[other] for other in of[p]]).logsumexp(0) for p in pairs
        }

    rows = {(i, j): [p for p in pairs if p[0] == i] for i, j in pairs}
    columns = {
        (i, j): [p for p in pairs if p[1] == j and (p[0] <= i or not causal)] for i, j in pairs
    }
    log = shared(rows)
    for _ in range(iterations):
        log = shared(columns)
        log = shared(rows)
    zero = scores.new_zeros(()) + 0 * scores.sum()
    return [[log[i, j].exp() if (i, j) in log else zero for j in range(n)] for i in range(n)]


def means(
    key: Tensor, positions: list[int], documents: list[int], size: int, causal: bool
) -> tuple[Tensor, Tensor]:
    """Descriptors of blocks that take and that are taken, (N, E) each."""
    blocks = blocks_of(positions, documents, size)
    giving = [key[slots].mean(0) for slots in blocks.values()]
    if not causal:
        return torch.stack(giving), torch.stack(giving)
    taking = []
    for (document, _), slots in blocks.items():
        known = [
            s for s, p in enumerate(positions)
            if documents[s] == document and 0 <= p <= positions[slots[0]]
        ]  # fmt: skip
        taking.append(key[known].mean(0))
    return torch.stack(taking), torch.stack(giving)


def attended(
    heads: tuple[Tensor, Tensor, Tensor],
    scores: Tensor,
    size: int,
    *,
    q_at: list[int],
    k_at: list[int],
    q_in: list[int] | None = None,
    k_in: list[int] | None = None,
    causal: bool = False,
    iterations: int = 8,
) -> Tensor:
    """query (G, L, E), key (S, E), value (S, Ev); scores (N, N), the temperature is in them."""
    query, key, value = heads
    q_in = q_in if q_in is not None else [0] * len(q_at)
    k_in = k_in if k_in is not None else [0] * len(k_at)
    blocks = blocks_of(k_at, k_in, size)
    members = list(blocks)
    p = doubly_stochastic(scores, members, iterations, causal)
    rows = [
        torch.stack([_row(query[g, i], key, value, q_at[i], q_in[i], k_at, blocks, p, size, causal)
                     for i in range(len(q_at))])
        for g in range(len(query))
    ]  # fmt: skip
    return torch.stack(rows)


def _row(
    q: Tensor,
    key: Tensor,
    value: Tensor,
    at: int,
    document: int,
    k_at: list[int],
    blocks: dict[Member, list[int]],
    p: list[list[Tensor]],
    size: int,
    causal: bool,
) -> Tensor:
    nothing = value.new_zeros(value.shape[1]) + 0 * q.sum()
    own = (document, at // size)
    if at < 0 or own not in blocks:
        return nothing
    i = list(blocks).index(own)
    scores, values = [], []
    for slot in blocks[own]:
        if not causal or k_at[slot] <= at:
            scores.append(q @ key[slot] / math.sqrt(len(q)))
            values.append(value[slot])
    if causal and not scores:  # what the block takes is chosen by its first key, which is later
        return nothing
    for offset in range(size):
        some = [
            (p[i][j], slot)
            for j, (member, slots) in enumerate(blocks.items())
            for slot in slots
            if k_at[slot] % size == offset and may_take(own, member, causal)
        ]
        if some:
            weight = sum((w for w, _ in some), start=q.new_zeros(()))
            mixed_key = sum((w * key[s] for w, s in some), start=0 * key[0]) / weight
            mixed_value = sum((w * value[s] for w, s in some), start=0 * value[0]) / weight
            scores.append(q @ mixed_key / math.sqrt(len(q)) + weight.log())
            values.append(mixed_value)
    if not scores:
        return nothing
    return torch.stack(scores).softmax(0) @ torch.stack(values)
