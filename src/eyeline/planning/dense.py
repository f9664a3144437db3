"""Small inputs written out: the pattern as one bool matrix, where that fits the memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.nn import Module

from eyeline.errors import InvalidArgument
from eyeline.patterns import Pattern, kept_apart
from eyeline.tokens import Tokens, default_tokens

# Plans and counts are integers in the memory of the CPU, whatever a user's default device is.

P = ParamSpec("P")
T = TypeVar("T")


def on_host(function: Callable[P, T]) -> Callable[P, T]:
    """A decorator: new tensors are made on the CPU, without gradients."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        with torch.inference_mode():
            if torch.get_default_device().type == "cpu":
                return function(*args, **kwargs)
            with torch.device("cpu"):
                return function(*args, **kwargs)

    return wrapped


# Planning is many short operations. torch shares some of them among threads however short they
# are: x[index] of a matrix, aminmax of an axis, repeat_interleave. Where other programs keep a
# processor busy, each then waits for its slowest thread. These stand in for them.


def rows_at(table: Tensor, index: Tensor) -> Tensor:
    """table[index] of a matrix (n, columns), for an index or a bool mask (n,)."""
    return table.index_select(0, index.nonzero()[:, 0] if index.dtype == torch.bool else index)


def extremes(values: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the greatest along axis 1."""
    return values.amin(1), values.amax(1)


def repeated(counts: Tensor) -> Tensor:
    """0 counts[0] times, then 1 counts[1] times, …"""
    ends = counts.cumsum(0)
    total = int(ends[-1]) if len(ends) else 0
    steps = counts.new_zeros(total + 1).index_add_(0, ends[:-1], torch.ones_like(ends[:-1]))
    return steps.cumsum(0)[:total]


# Plans that do not fit this machine's memory are refused before they are begun.

# Bytes that planning holds for each slot at its peak: positions, tiles, masks and their copies.
_SLOT = 192


def check_memory(queries: int, keys: int) -> None:
    """Raise InvalidArgument, with the estimate, if planning would need more than there is."""
    needed, there = (queries + keys) * _SLOT, installed()
    if there is not None and needed > there:
        raise InvalidArgument(
            f"planning {queries:,} queries × {keys:,} keys takes about {needed / 2**30:,.0f} GiB, "
            f"and this machine has {there / 2**30:,.1f} GiB: plan the sequence in pieces, with "
            "q_tokens and k_tokens"
        )


def installed() -> int | None:
    """Bytes of memory that the machine has, or None where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


# The pattern as one bool matrix, for small inputs, tests and pictures.


def dense_mask(
    pattern: Pattern,
    length: int | None = None,
    key_length: int | None = None,
    *,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
    batch: int | None = None,
    heads: int | None = None,
) -> Tensor:
    """mask[i, j] = i may attend to j: bool (L, S), or (B, L, S) for batched tokens.

    Padding is excluded, and so are other documents, where tokens name them.
    length, key_length: L and S (S = L when omitted), or explicit tokens. batch, heads: for
    patterns that differ per batch row or head; the mask is then (B, H, L, S). Memory is L·S: this
    is the definition made visible, not what kernels use.

    A pattern that varies by length is drawn for the length that the tokens have, see ``settled``.

    Raises InvalidArgument for a pattern that differs per row or head without batch and heads.
    """
    q, k = described(pattern, length, key_length, q_tokens, k_tokens)
    if batch is not None and heads is not None:
        pattern.check_call(batch, heads)
        if not batch:
            return torch.zeros(0, heads, q.length, k.length, dtype=torch.bool)
        return torch.stack([_row(pattern, q, k, b, heads) for b in range(batch)])
    if "length" in pattern.varies_by:
        rows = q.batch if q.batch is not None else k.batch
        if rows is not None:
            every = (dense_mask(pattern, q_tokens=q.row(b), k_tokens=k.row(b)) for b in range(rows))
            return torch.stack(list(every))
    pattern = settled(pattern, q, k)
    if pattern.varies_by:
        raise InvalidArgument(
            f"{pattern} differs per {' and '.join(sorted(pattern.varies_by))}: "
            "give batch and heads, or choose one with pattern.at(batch, head)"
        )
    return pattern.sees(q.points(axis=-2), k.points(axis=-1))


def _row(pattern: Pattern, q: Tokens, k: Tokens, batch: int, heads: int) -> Tensor:
    q, k = q.row(batch), k.row(batch)
    every = (dense_mask(pattern.at(batch, h), q_tokens=q, k_tokens=k) for h in range(heads))
    return torch.stack(list(every))


def settled(pattern: Pattern, q_tokens: Tokens, k_tokens: Tokens) -> Pattern:
    """The rule that holds for these tokens: documents apart, and ``pattern.of_length(n)``.

    n is the greatest position of queries and keys, plus 1; 0 if all are padding. It is looked
    for only where the pattern varies by length; batched tokens then go row by row.
    """
    pattern = kept_apart(pattern, q_tokens, k_tokens)
    if "length" not in pattern.varies_by:
        return pattern
    positions = [t.positions for t in (q_tokens, k_tokens) if t.length]
    return pattern.of_length(max((int(x.max()) + 1 for x in positions), default=0))


def _check_kind(pattern: object) -> None:
    """Raise InvalidArgument for what is no Pattern, with what to write in its place."""
    if isinstance(pattern, Pattern):
        return
    kind, hint = type(pattern).__name__, "for example Causal()"
    if isinstance(pattern, Module):
        hint = f"cost({kind}(…), length) counts mechanisms and layers"
    elif isinstance(pattern, str):
        hint = f"write parse({pattern!r:.60})"
    raise InvalidArgument(f"pattern is a {kind}, and a Pattern is due: {hint}")


def described(
    pattern: Pattern,
    length: int | None,
    key_length: int | None,
    q_tokens: Tokens | None,
    k_tokens: Tokens | None,
) -> tuple[Tokens, Tokens]:
    """The tokens that lengths, or explicit tokens, describe; never both."""
    _check_kind(pattern)
    if q_tokens is not None and k_tokens is not None and length is None and key_length is None:
        return q_tokens, k_tokens
    if length is None or q_tokens is not None or k_tokens is not None:
        raise InvalidArgument("give a length, or both q_tokens and k_tokens")
    key_length = key_length if key_length is not None else length
    if length < 0 or key_length < 0:
        raise InvalidArgument(f"lengths are at least 0, got L={length}, S={key_length}")
    if length > key_length and pattern.compares_positions:
        raise InvalidArgument(
            f"{length} queries but {key_length} keys: {pattern} compares positions, and omitted "
            "queries are the last of the keys; say where they stand with q_tokens and k_tokens"
        )
    pattern.check_length(key_length)
    check_memory(length, key_length)
    return default_tokens(length, key_length)
