"""From the arguments of a call to a Request: everything that can be wrong is found here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

from eyeline.checks import probability
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.kernels.request import Request
from eyeline.patterns import Explicit, Pattern, Predicate, check_sides
from eyeline.scores import Called, Dropout, Product, ScoreMod, ScoreStep, Step
from eyeline.tokens import Tokens, default_tokens

PatternLike = Pattern | Tensor | Callable[..., Tensor]
ScoreModLike = ScoreMod | Callable[..., Any] | Sequence[Any] | None


class Call(NamedTuple):
    """One attention call that was checked. It says what a Request says, but for what is drawn.

    tokens: those of queries and keys, None where they are omitted. steps: without dropout.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    pattern: Pattern
    tokens: tuple[Tokens, Tokens] | None
    scale: float
    steps: tuple[Step, ...]
    dropout_p: float
    wants_lse: bool

    @property
    def standing(self) -> tuple[Tokens, Tokens]:
        """The tokens of queries and keys, also where they are omitted."""
        if self.tokens is not None:
            return self.tokens
        return default_tokens(self.query.shape[2], self.key.shape[2])

    def request(self) -> Request:
        """What a kernel is asked to do. A new seed of dropout is drawn."""
        q, k = self.standing
        steps = self.steps + _dropout(self.dropout_p)
        tensors = self.query, self.key, self.value
        return Request(*tensors, self.pattern, q, k, self.scale, self.wants_lse, steps)


def make_request(
    query: Tensor, key: Tensor, value: Tensor, pattern: PatternLike, **options: Any
) -> Request:
    """``check_call``, as a request."""
    return check_call(query, key, value, pattern, **options).request()


def check_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: PatternLike,
    *,
    scale: float | None,
    q_tokens: Tokens | None,
    k_tokens: Tokens | None,
    score_mod: ScoreModLike = None,
    dropout_p: float = 0.0,
    wants_lse: bool = False,
    sums_values: bool = True,
) -> Call:
    """Check one attention call. Nothing is looked up on the device, so a GPU is not waited for.

    sums_values: whether values are summed up; else only weights are asked for.
    """
    if torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]
        raise NotSupported("torch.jit cannot trace attention: use torch.export")
    _check_tensors(query, key, value)
    if torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
        if query.dtype != torch.float64:  # autocast leaves it alone
            query, key, value = (x.to(dtype) for x in (query, key, value))
    mods = as_score_mods(score_mod)
    for mod in mods:
        mod.check(query.shape[1], query.shape[3], value.shape[3] if sums_values else None)
        query = _shifted(mod, query)
    _check_order(mods)
    if isinstance(scale, Tensor):
        raise NotSupported("scale is a tensor: multiply the query by it and give scale=1.0")
    rule = as_pattern(pattern)
    rule.check_call(query.shape[0], query.shape[1])
    steps = tuple(step for mod in mods for step in mod.steps())
    comparing = _comparing(rule, mods, steps)
    tokens = _tokens(query, key, rule, comparing, q_tokens, k_tokens)
    scale = scale if scale is not None else 1.0 / math.sqrt(max(query.shape[-1], 1))
    if not -math.inf < scale < math.inf:
        raise InvalidArgument(f"scale={scale}: it must be a finite number")
    dropout_p = probability("dropout_p", dropout_p)
    return Call(query, key, value, rule, tokens, float(scale), steps, dropout_p, wants_lse)


def check_pattern_heads(pattern: Pattern, num_heads: int) -> None:
    """Raise InvalidArgument if it was made for other heads, as far as it does not ask for rows."""
    if "batch" not in pattern.varies_by:
        pattern.check_call(1, num_heads)


def as_score_mods(score_mod: ScoreModLike) -> tuple[ScoreMod, ...]:
    """None, a ScoreMod, FlexAttention's callable, or several of them, as a tuple of ScoreMods."""
    if score_mod is None:
        return ()
    if isinstance(score_mod, ScoreMod):
        return (score_mod,)
    if isinstance(score_mod, (str, type)):
        raise InvalidArgument(f"score_mod={score_mod!r}: give a value, for example ALiBi(8)")
    if isinstance(score_mod, Sequence):
        return tuple(mod for each in score_mod for mod in as_score_mods(each))
    if isinstance(score_mod, Tensor):
        raise InvalidArgument(
            f"score_mod is a tensor {tuple(score_mod.shape)}: a bias of L × S numbers is not "
            "taken, since its memory is not linear; give a ScoreMod, for example T5Bias or ALiBi, "
            "or a callable score_mod(score, b, h, q_idx, kv_idx)"
        )
    return (Called(score_mod),)


def _shifted(mod: ScoreMod, query: Tensor) -> Tensor:
    shifted = mod.shifted(query)
    if shifted.shape != query.shape or shifted.dtype != query.dtype:
        raise InvalidArgument(
            f"{type(mod).__name__}.shifted gave {shifted.dtype} {tuple(shifted.shape)} for queries "
            f"{query.dtype} {tuple(query.shape)}"
        )
    return shifted


def _check_order(mods: tuple[ScoreMod, ...]) -> None:
    """What shifts the queries is done before all others, though it may stand after them."""
    for index, mod in enumerate(mods):
        if type(mod).shifted is ScoreMod.shifted:
            continue
        for place, other in enumerate(mods):
            shifts = type(other).shifted is not ScoreMod.shifted
            steps = other.steps() if other is not mod else ()
            meets = any(isinstance(step, Product) for step in steps)
            capped = place < index and any(
                isinstance(step, ScoreStep) and not step.additive for step in steps
            )
            if place != index and (shifts or meets or capped):
                raise NotSupported(
                    f"{type(mod).__name__} shifts the queries, which {type(other).__name__} would "
                    "see too: give it alone or with modifiers that only add numbers"
                )


def _dropout(p: float) -> tuple[Dropout, ...]:
    if p == 0.0:
        return ()
    # torch's own generator, so that torch.manual_seed says what is dropped.
    seed = int(torch.randint(1 << 62, (), device="cpu"))
    return (Dropout(p, seed),)


def as_pattern(pattern: PatternLike) -> Pattern:
    """A pattern as it is; a bool tensor as Explicit; a FlexAttention mask_mod as Predicate."""
    if isinstance(pattern, Pattern):
        return pattern
    if isinstance(pattern, Tensor):
        return Explicit(pattern)
    if isinstance(pattern, Module):
        name = type(pattern).__name__
        raise InvalidArgument(
            f"pattern is a {name}, a module and no pattern: a mechanism is called itself, "
            f"{name}(…)(query, key, value), and says what it does by {name}(…).explain(query, key)"
        )
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
    if query.is_meta:
        raise NotSupported(f"meta tensors hold no numbers to look at ({_sizes(query, key, value)})")
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


def _comparing(
    pattern: Pattern, mods: tuple[ScoreMod, ...], steps: tuple[Step, ...]
) -> Pattern | str | None:
    """What asks how far queries and keys stand from one another, if anything does."""
    if pattern.compares_positions:
        return pattern
    asking = any(step.curve is not None or isinstance(step, Called) for step in steps)
    return " and ".join(type(mod).__name__ for mod in mods) if asking else None


def _tokens(
    query: Tensor,
    key: Tensor,
    pattern: Pattern,
    comparing: Pattern | str | None,
    q: Tokens | None,
    k: Tokens | None,
) -> tuple[Tokens, Tokens] | None:
    batch, _, queries, _ = query.shape
    keys = key.shape[2]
    if q is None and k is None:
        if queries > keys and comparing is not None:
            raise InvalidArgument(
                f"{queries} queries but {keys} keys: {comparing} compares positions, and omitted "
                "queries are the last of the keys; say where they stand with q_tokens and k_tokens"
            )
        pattern.check_length(keys)
        return None
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
    check_sides(q, k)
    return q, k


def _check_tokens(name: str, tokens: Tokens, batch: int, length: int) -> None:
    if tokens.length != length or tokens.batch not in (None, batch):
        raise InvalidArgument(
            f"{name} has shape {tuple(tokens.positions.shape)}; the tensors need ({length},) or "
            f"({batch}, {length})"
        )
