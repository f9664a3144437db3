"""What mechanisms that pick keys by their scores have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from eyeline.exact.call import (
    PatternLike,
    as_pattern,
    check_pattern_heads,
    probability,
)  # fmt: skip
from eyeline.functional.routed import routed_attention
from eyeline.mechanisms.told import told
from eyeline.patterns import Pattern
from eyeline.patterns.ahead import never_looks_ahead, reads_in_steps
from eyeline.planning.cost import Asked, Work
from eyeline.planning.dense import settled
from eyeline.planning.peeling import rules
from eyeline.routing import Route
from eyeline.routing.ranges import allowed, multiplied
from eyeline.tokens import Tokens, default_tokens


class Picking(nn.Module, ABC):
    """Attention to some keys of each query, which are picked among those the pattern allows."""

    def __init__(self, pattern: PatternLike, dropout: float) -> None:
        super().__init__()
        self.pattern: Pattern = as_pattern(pattern)
        self.dropout = probability("dropout", dropout)

    @abstractmethod
    def route(
        self,
        query: Tensor,
        key: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> Route:
        """Whom each query (B, H, L, E) looks at, of keys (B, Hk, S, E)."""

    @property
    @abstractmethod
    def most(self) -> int:
        """How many keys a query looks at, at most."""

    @property
    def causality(self) -> str:
        """ "functional" under a pattern that never looks ahead, else "none"."""
        return "functional" if never_looks_ahead(self.pattern) else "none"

    @property
    def no_cache(self) -> str | None:
        """Why a text cannot be read in steps; None where it can, from the keys of its pattern."""
        return reads_in_steps(self.pattern)

    def check(self, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        """Raise InvalidArgument if the pattern was made for other heads."""
        check_pattern_heads(self.pattern, num_heads)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> Tensor:
        """(B, H, L, E), (B, Hk, S, E), (B, Hk, S, Ev) to (B, H, L, Ev)."""
        route = self.route(query, key, q_tokens=q_tokens, k_tokens=k_tokens)
        return routed_attention(
            query, key, value, route, self.pattern,
            dropout_p=self.dropout if self.training else 0.0, q_tokens=q_tokens, k_tokens=k_tokens,
        )  # fmt: skip

    def explain(
        self,
        query: Tensor,
        key: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> dict[str, str]:
        """What is promised, what is computed after picking, and who is reached."""
        route = self.route(query, key, q_tokens=q_tokens, k_tokens=k_tokens)
        if self.causality == "functional":
            promise = "functional: keys are picked among those that came before"
        else:
            promise = f"none: under {self.pattern} tokens may look ahead"
        return told(promise, route, query, key, self.pattern, q_tokens=q_tokens, k_tokens=k_tokens)

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
