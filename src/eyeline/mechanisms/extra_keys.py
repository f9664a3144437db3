"""Trained keys and values that do not belong to the sequence, and that every token looks at."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn

from eyeline.checks import check_size
from eyeline.errors import InvalidArgument
from eyeline.mechanisms.exact import Exact
from eyeline.mechanisms.merging import all_weights, beyond, looked, without_nobody
from eyeline.patterns import Pattern
from eyeline.planning.cost import Asked, Work, of_pattern
from eyeline.tokens import Tokens


@final
class ExtraKeys(nn.Module):
    """softmax over the keys that a query may look at and, in each head, ``count`` trained ones.

    exact: how the sequence's own keys are looked at. Its score modifiers do not apply to the
    extra keys, which stand nowhere. key, value: (num_kv_heads, count, head_dim), parameters.
    They hold nothing of the sequence, so no future leaks through them, and it decodes from a
    cache. torch's ``add_bias_kv`` is count = 1. Sukhbaatar et al. 2019, "Augmenting
    self-attention with persistent memory"; its keys start as N(0, 1/E), as do these values.

    A query that may look at nobody else looks at them alone; nobody (-1) gets 0. Raises
    InvalidArgument for sizes below 1.
    """

    def __init__(self, exact: Exact, count: int, *, num_kv_heads: int, head_dim: int) -> None:
        super().__init__()
        sizes = {"count": count, "num_kv_heads": num_kv_heads, "head_dim": head_dim}
        for name, size in sizes.items():
            check_size(f"extra keys {name}", size)
        self.exact = exact
        self.key = nn.Parameter(torch.empty(num_kv_heads, count, head_dim))
        self.value = nn.Parameter(torch.empty(num_kv_heads, count, head_dim))
        self.reset_parameters()

    @property
    def pattern(self) -> Pattern:
        """Who may look at whom in the sequence."""
        return self.exact.pattern

    def reset_parameters(self) -> None:
        """Draws the extra keys and values anew."""
        for x in (self.key, self.value):
            nn.init.normal_(x, std=1 / math.sqrt(x.shape[-1]))

    def check(self, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        """Raise InvalidArgument if it, or how it looks at the sequence, is for other heads."""
        self.exact.check(num_heads, num_kv_heads, head_dim)
        self._check_keys(num_kv_heads, head_dim)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> Tensor:
        """(B, H, L, E), (B, Hk, S, E), (B, Hk, S, E) to (B, H, L, E)."""
        self._check_keys(key.shape[1], key.shape[3])
        heads, more = (query, key, value), (self.key[None], self.value[None])
        out = looked(
            self.exact, self.pattern, heads, more,
            tokens=(q_tokens, k_tokens), score_mods=self.exact.score_mods,
        )  # fmt: skip
        return out if q_tokens is None else without_nobody(out, q_tokens)

    def weights(
        self,
        query: Tensor,
        key: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> Tensor:
        """The weights of the sequence's keys, then of the extra ones: (B, H, L, S + count)."""
        self._check_keys(key.shape[1], key.shape[3])
        return all_weights(
            self.exact, query, key, self.key[None], q_tokens=q_tokens, k_tokens=k_tokens
        )

    def work(self, asked: Asked) -> Work:
        """Each query also looks at ``count`` keys more; see ``eyeline.cost``."""
        shared, count, width = self.key.shape
        call = asked.known("extra keys", kv_heads=shared, head_dim=width, value_dim=width)
        return beyond(of_pattern(self.pattern, call.call), call.call.length * count, self)

    def _check_keys(self, num_kv_heads: int, head_dim: int) -> None:
        heads, _, width = self.key.shape
        if (heads, width) != (num_kv_heads, head_dim):
            raise InvalidArgument(
                f"extra keys for {heads} key heads of {width}; there are {num_kv_heads} of "
                f"{head_dim}"
            )

    def extra_repr(self) -> str:
        return f"count={self.key.shape[1]}"
