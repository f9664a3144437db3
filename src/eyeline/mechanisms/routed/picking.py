"""Attention to the best keys of each query: a number of them, or those above a threshold."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import final

import torch
from torch import Tensor

from eyeline.checks import check_size, probability
from eyeline.errors import InvalidArgument
from eyeline.exact.call import Call, PatternLike, as_pattern, check_call
from eyeline.kernels.autograd import eager
from eyeline.kernels.route import Route
from eyeline.mechanisms.base import register
from eyeline.mechanisms.routed.attend import RoutedMechanism, routed_attention
from eyeline.mechanisms.routed.best import at_most, best, weighty
from eyeline.mechanisms.routed.scored import Scored, allowed, multiplied
from eyeline.patterns import Full
from eyeline.patterns.ahead import reads_in_steps
from eyeline.planning.cost import Asked, Work
from eyeline.planning.dense import settled
from eyeline.planning.peeling import rules
from eyeline.tokens import Tokens, default_tokens

# How keys are picked by their scores, for a call that was checked.


def picked(
    pick: Callable[[Scored], Route],
    query: Tensor,
    key: Tensor,
    pattern: PatternLike,
    *,
    scale: float | None,
    q_tokens: Tokens | None,
    k_tokens: Tokens | None,
) -> Route:
    """Whom each query looks at, of those that the pattern allows and that are of its document.

    It is not part of a graph: what is picked is not known before it runs.
    """
    call = check_call(query, key, key, pattern, scale=scale, q_tokens=q_tokens, k_tokens=k_tokens)
    return eager(lambda: _picked(pick, call))


def _picked(pick: Callable[[Scored], Route], call: Call) -> Route:
    q, k = call.standing
    with torch.no_grad(), torch.autocast(call.query.device.type, enabled=False):
        return pick(Scored(call.query, call.key, call.pattern, q, k, call.scale))


# What mechanisms that pick keys by their scores have in common.


class Picking(RoutedMechanism):
    """Attention to some keys of each query, which are picked among those the pattern allows."""

    def __init__(self, pattern: PatternLike, dropout: float) -> None:
        super().__init__()
        self.pattern = as_pattern(pattern)
        self.dropout = probability("dropout", dropout)

    @property
    @abstractmethod
    def most(self) -> int:
        """How many keys a query looks at, at most."""

    @property
    def no_cache(self) -> str | None:
        """Why a text cannot be read in steps; None where it can, from the keys of its pattern."""
        return reads_in_steps(self.pattern)

    @property
    def promise(self) -> str:
        """ "functional: …" or "none: …"."""
        if self.causality == "functional":
            return "functional: keys are picked among those that came before"
        return f"none: under {self.pattern} tokens may look ahead"

    def work(self, asked: Asked) -> Work:
        """E for each pair that the pattern allows, then E + Ev for each that is picked, at most.

        Scores are also computed where only part of a range of keys is allowed. See
        ``eyeline.cost``.
        """
        call = asked.call
        q, k = default_tokens(call.length, call.key_length)
        scores = made = pairs = 0
        for rule, heads in rules(settled(self.pattern, q, k), call.heads):
            counts = allowed(rule, q, k)
            scores += heads * int(counts.sum())
            pairs += heads * int(counts.clamp(max=self.most).sum())
            made += heads * multiplied(rule, q, k)
        computed = call.heads * call.length * min(self.most, call.key_length)
        return Work(
            call, pairs, computed,
            scores * call.head_dim + pairs * call.products,
            made * call.head_dim + computed * call.products,
            numbers=call.numbers,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return str(self.pattern) + (f", dropout={self.dropout:g}" if self.dropout else "")


# Attention to the k best keys of each query, exactly, in linear memory.


def topk_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    k: int,
    pattern: PatternLike = Full(),
    *,
    scale: float | None = None,
    dropout_p: float = 0.0,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
) -> Tensor:
    """out[i] = Σ_j softmax_j(s_ij) v_j over the k keys of greatest s_ij = scale · query[i]·key[j].

    They are picked among those that the pattern allows and, where tokens name documents, that are
    of the query's document; fewer where fewer are. With k ≥ S it is ``attention`` over these. Of
    scores that are equal to the last bit, those of the first slots are picked; scores that are
    equal but for rounding may be picked either way.

    query (B, H, L, E), key (B, Hk, S, E), value (B, Hk, S, Ev) to (B, H, L, Ev); options, tokens
    and errors are those of ``attention``. All allowed scores are computed, in float32 or wider,
    and none is kept: memory is H·L·k. Gradients are those of the picked pairs, since what is
    picked changes in jumps. First derivatives. Raises InvalidArgument for k below 1. Gupta et al.
    2021, "Memory-efficient Transformers via Top-k Attention".
    """
    route = topk_route(query, key, k, pattern, scale=scale, q_tokens=q_tokens, k_tokens=k_tokens)
    return routed_attention(
        query, key, value, route, pattern,
        scale=scale, dropout_p=dropout_p, q_tokens=q_tokens, k_tokens=k_tokens,
    )  # fmt: skip


def topk_route(
    query: Tensor,
    key: Tensor,
    k: int,
    pattern: PatternLike = Full(),
    *,
    scale: float | None = None,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
) -> Route:
    """Whom each query of ``topk_attention`` looks at: blocks of one query and min(k, S) keys."""
    check_size("topk k", k)
    pick = partial(best, k=k)
    return picked(pick, query, key, pattern, scale=scale, q_tokens=q_tokens, k_tokens=k_tokens)


# Attention to the k best keys of each query.


@register("topk")
@final
class TopK(Picking):
    """out[i] = Σ_j softmax_j(q_i·k_j/√E) v_j over the k keys of greatest q_i·k_j, head by head.

    k: how many keys, at most. pattern: any; keys are picked among those it allows, and where
    tokens name documents among those of the query's own. dropout: of weights, while training.
    Equal scores, gradients, memory and paper: see ``topk_attention``.

    causality: "functional" under a pattern that never looks ahead: later keys are not compared.
    It decodes from the keys its pattern keeps, and each step picks anew. Under other patterns
    "none", and there is no cache. Raises InvalidArgument for k below 1 and a dropout that is not a
    probability below 1.
    """

    def __init__(self, k: int, *, pattern: PatternLike = Full(), dropout: float = 0.0) -> None:
        super().__init__(pattern, dropout)
        check_size("topk k", k)
        self.k = k

    @property
    def most(self) -> int:
        return self.k

    def route(
        self,
        query: Tensor,
        key: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> Route:
        """Whom each query looks at: blocks of one query and min(k, S) keys."""
        return topk_route(query, key, self.k, self.pattern, q_tokens=q_tokens, k_tokens=k_tokens)

    def extra_repr(self) -> str:
        return f"k={self.k}, {super().extra_repr()}"


# Attention to the keys whose weight reaches a threshold, in linear memory.


def threshold_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    t: float,
    pattern: PatternLike = Full(),
    *,
    scale: float | None = None,
    dropout_p: float = 0.0,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
) -> Tensor:
    """out[i] = Σ_j p_ij v_j / Σ_j p_ij over the j with p_ij ≥ t, p_i = softmax_j(scale · q_i·k_j).

    The softmax is over all keys that the pattern allows and, where tokens name documents, that
    are of the query's document. Where no weight reaches t, the weightiest key alone is taken, of
    equal ones that of the first slot. At most 1/t keys are looked at. As t goes to 0 this becomes
    ``attention``.

    query (B, H, L, E), key (B, Hk, S, E), value (B, Hk, S, Ev) to (B, H, L, Ev); options, tokens
    and errors are those of ``attention``. All allowed scores are computed, in float32 or wider,
    and none is kept: memory is that of the pairs that reach t. Gradients are those of these
    pairs. First derivatives. Raises InvalidArgument unless 0 < t < 1.
    """
    route = threshold_route(
        query, key, t, pattern, scale=scale, q_tokens=q_tokens, k_tokens=k_tokens
    )
    return routed_attention(
        query, key, value, route, pattern,
        scale=scale, dropout_p=dropout_p, q_tokens=q_tokens, k_tokens=k_tokens,
    )  # fmt: skip


def threshold_route(
    query: Tensor,
    key: Tensor,
    t: float,
    pattern: PatternLike = Full(),
    *,
    scale: float | None = None,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
) -> Route:
    """Whom each query of ``threshold_attention`` looks at, in blocks of at most 16 keys."""
    t = check_threshold(t)
    pick = partial(weighty, t=t)
    return picked(pick, query, key, pattern, scale=scale, q_tokens=q_tokens, k_tokens=k_tokens)


def check_threshold(t: float) -> float:
    """t as a float. Raises InvalidArgument unless it is a number between 0 and 1."""
    if isinstance(t, bool) or not isinstance(t, (int, float)) or not 0.0 < t < 1.0:
        raise InvalidArgument(f"threshold t={t!r}: a weight above 0 and below 1")
    return float(t)


# Attention to the keys whose weight reaches a threshold.


@register("threshold")
@final
class Threshold(Picking):
    """out[i] = Σ_j p_ij v_j / Σ_j p_ij over the j with p_ij ≥ t, p_i = softmax_j(q_i·k_j/√E).

    t: the weight from which on a key is looked at; where none reaches it, the weightiest is. The
    softmax is over the keys that the pattern allows, and where tokens name documents over those
    of the query's own. pattern: any. dropout: of weights, while training. Ties, gradients and
    memory: see ``threshold_attention``.

    causality: "functional" under a pattern that never looks ahead; it then decodes from the keys
    its pattern keeps, and each step weighs them anew. Under other patterns "none", and there is
    no cache. Raises InvalidArgument unless 0 < t < 1, and for a dropout that is not a probability
    below 1.
    """

    def __init__(self, t: float, *, pattern: PatternLike = Full(), dropout: float = 0.0) -> None:
        super().__init__(pattern, dropout)
        self.t = check_threshold(t)

    @property
    def most(self) -> int:
        return at_most(self.t)

    def route(
        self,
        query: Tensor,
        key: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> Route:
        """Whom each query looks at, in blocks of at most 16 keys."""
        return threshold_route(
            query, key, self.t, self.pattern, q_tokens=q_tokens, k_tokens=k_tokens
        )

    def extra_repr(self) -> str:
        return f"t={self.t:g}, {super().extra_repr()}"
