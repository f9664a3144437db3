"""Exact attention under a pattern, as a module that a layer can be given."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from eyeline.functional import attention
from eyeline.patterns import Pattern
from eyeline.tokens import Tokens


@final
class Exact(nn.Module):
    """out = attention(query, key, value, pattern): softmax over the keys each query may look at.

    Causality is the pattern's own: with a causal pattern no past output depends on the future
    ("functional"). It decodes from a cache, since ``pattern.needed`` says what to keep.
    """

    def __init__(self, pattern: Pattern, *, scale: float | None = None) -> None:
        super().__init__()
        self.pattern = pattern
        self.scale = scale

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> Tensor:
        """(B, H, L, E), (B, Hk, S, E), (B, Hk, S, Ev) to (B, H, L, Ev); see ``attention``."""
        return attention(
            query, key, value, self.pattern, scale=self.scale, q_tokens=q_tokens, k_tokens=k_tokens
        )

    def extra_repr(self) -> str:
        return str(self.pattern)
