"""From the arguments of a call to a Request: everything that can be wrong is found here."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument, NotSupported
from eyeline.kernels.request import Request
from eyeline.patterns import Explicit, Pattern, Predicate
from eyeline.tokens import Tokens, default_tokens

PatternLike = Pattern | Tensor | Callable[..., Tensor]


def make_request(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: PatternLike,
    *,
    scale: float | None,
    q_tokens: Tokens | None,
    k_tokens: Tokens | None,
    score_mod: Any = None,
    dropout_p: float = 0.0,
    wants_lse: bool = False,
) -> Request:
    """Check one attention call. Nothing is looked up on the device, so a GPU is not waited for."""
    _check_tensors(query, key, value)
    if torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = (x.to(dtype) for x in (query, key, value))
    if score_mod is not None:
        raise NotSupported("score_mod is not built yet: scores cannot be changed in this version")
    if dropout_p != 0.0:
        raise NotSupported(f"dropout_p={dropout_p} is not built yet: use dropout_p=0.0")
    if isinstance(scale, Tensor):
        raise NotSupported("scale is a tensor: multiply the query by it and give scale=1.0")
    rule = as_pattern(pattern)
    rule.check_call(query.shape[0], query.shape[1])
    q_tokens, k_tokens = _tokens(query, key, rule, q_tokens, k_tokens)
    scale = scale if scale is not None else 1.0 / math.sqrt(max(query.shape[-1], 1))
    if not math.isfinite(scale):
        raise InvalidArgument(f"scale={scale}: it must be a finite number")
    return Request(query, key, value, rule, q_tokens, k_tokens, float(scale), wants_lse)


def as_pattern(pattern: PatternLike) -> Pattern:
    """A pattern as it is; a bool tensor as Explicit; a FlexAttention mask_mod as Predicate."""
    if isinstance(pattern, Pattern):
        return pattern
    if isinstance(pattern, Tensor):
        return Explicit(pattern)
    if callable(pattern) and not isinstance(pattern, type):
        return Predicate(pattern)
    raise InvalidArgument(
        f"pattern is a {type(pattern).__name__}: give a Pattern, a bool tensor (True = may look) "
        f"or a mask_mod(b, h, q_idx, kv_idx){_hint(pattern)}"
    )


def _hint(pattern: object) -> str:
    if isinstance(pattern, str):
        return f"; write parse({pattern!r})"
    return f"; write {pattern.__name__}()" if isinstance(pattern, type) else ""


def _check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, Tensor):
            raise InvalidArgument(f"{name} is a {type(x).__name__}, not a tensor")
        if x.dim() != 4:
            raise InvalidArgument(
                f"{name} {tuple(x.shape)} must have four dimensions: (batch, heads, length, width)"
            )
    q, k, v = query.shape, key.shape, value.shape
    _same("dtype", (query, key, value), (query.dtype, key.dtype, value.dtype))
    _same("device", (query, key, value), (query.device, key.device, value.device))
    _same("batch size", (query, key, value), (q[0], k[0], v[0]))
    _same("length", (query, key, value), (None, k[2], v[2]))
    _same("heads", (query, key, value), (None, k[1], v[1]))
    _same("width", (query, key, value), (q[3], k[3], None))
    if not query.is_floating_point():
        raise InvalidArgument(f"query is {query.dtype}: attention needs a floating-point type")
    if not k[1] or not q[1] or q[1] % k[1]:
        raise InvalidArgument(
            f"{q[1]} query heads cannot share {k[1]} key heads evenly: the first must be a "
            f"multiple of the second ({_sizes(query, key, value)})"
        )


def _same(what: str, tensors: tuple[Tensor, Tensor, Tensor], values: tuple[Any, Any, Any]) -> None:
    """All values but None are equal. Words are made for an error only: decoding comes by often."""
    given = [value for value in values if value is not None]
    if given.count(given[0]) == len(given):
        return
    named = zip(("query", "key", "value"), values, strict=True)
    listed = ", ".join(f"{name} has {value}" for name, value in named if value is not None)
    raise InvalidArgument(f"{what} differs: {listed} ({_sizes(*tensors)})")


def _sizes(query: Tensor, key: Tensor, value: Tensor) -> str:
    named = {"query": query, "key": key, "value": value}
    return ", ".join(f"{name} {tuple(x.shape)}" for name, x in named.items())


def _tokens(
    query: Tensor, key: Tensor, pattern: Pattern, q: Tokens | None, k: Tokens | None
) -> tuple[Tokens, Tokens]:
    batch, _, queries, _ = query.shape
    keys = key.shape[2]
    if q is None and k is None:
        if queries > keys and pattern.compares_positions:
            raise InvalidArgument(
                f"{queries} queries but {keys} keys: {pattern} compares positions, and omitted "
                "queries are the last of the keys; say where they stand with q_tokens and k_tokens"
            )
        pattern.check_length(keys)
        return default_tokens(queries, keys)
    if k is None:
        raise InvalidArgument(
            "q_tokens without k_tokens: say where the keys stand too, for self-attention with "
            f"k_tokens=q_tokens, else for example with Tokens.arange(0, {keys})"
        )
    if q is None:
        if queries > k.length:
            raise InvalidArgument(
                f"{queries} queries cannot be the last of {k.length} key tokens: give q_tokens"
            )
        q = k.last(queries)
    _check_tokens("q_tokens", q, batch, queries)
    _check_tokens("k_tokens", k, batch, keys)
    if (q.documents is None) != (k.documents is None):
        with_, without = ("k", "q") if q.documents is None else ("q", "k")
        raise InvalidArgument(
            f"{with_}_tokens name documents and {without}_tokens do not: give both or neither"
        )
    return q, k


def _check_tokens(name: str, tokens: Tokens, batch: int, length: int) -> None:
    if tokens.length != length or tokens.batch not in (None, batch):
        raise InvalidArgument(
            f"{name} has shape {tuple(tokens.positions.shape)}; the tensors need ({length},) or "
            f"({batch}, {length})"
        )
