"""Additive attention under a pattern, as a module that a layer can be given."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from eyeline.checks import check_size
from eyeline.errors import InvalidArgument
from eyeline.exact.call import PatternLike, as_pattern, probability
from eyeline.functional.additive import additive_attention, additive_attention_weights
from eyeline.patterns import Full
from eyeline.patterns.ahead import never_looks_ahead
from eyeline.planning.cost import Asked, Work, numbers_in, of_pattern
from eyeline.tokens import Tokens


@final
class Additive(nn.Module):
    """head_h: softmax_j(w_vᵀ tanh(W_q query[i] + W_k key[j])) · value[j], W and w for each head.

    num_heads: query heads; key heads may be shared by several. head_dim: the width of queries and
    keys. hidden: the width of the network, head_dim if not given. Parameters w_q and w_k
    (num_heads, hidden, head_dim), w_v (num_heads, hidden), drawn as nn.Linear draws its own.
    dropout: of weights, while training. Causality is the pattern's own, and it decodes from a
    cache, as ``Exact`` does. Time is L·S·hidden. Bahdanau et al. 2015.

    Raises InvalidArgument for sizes below 1 and a dropout that is not a probability below 1.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        hidden: int | None = None,
        pattern: PatternLike = Full(),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        hidden = hidden if hidden is not None else head_dim
        sizes = {"num_heads": num_heads, "head_dim": head_dim, "hidden": hidden}
        for name, size in sizes.items():
            check_size(f"additive {name}", size)
        self.pattern = as_pattern(pattern)
        self.dropout = probability("dropout", dropout)
        self.w_q = nn.Parameter(torch.empty(num_heads, hidden, head_dim))
        self.w_k = nn.Parameter(torch.empty(num_heads, hidden, head_dim))
        self.w_v = nn.Parameter(torch.empty(num_heads, hidden))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the network anew: uniform within 1/√(its inputs), as nn.Linear."""
        for weight in (self.w_q, self.w_k, self.w_v):
            bound = weight.shape[-1] ** -0.5
            nn.init.uniform_(weight, -bound, bound)

    @property
    def causality(self) -> str:
        """ "functional" under a pattern that never looks ahead, else "none"."""
        return "functional" if never_looks_ahead(self.pattern) else "none"

    def check(self, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        """Raise InvalidArgument if it was made for other heads."""
        heads, _, width = self.w_q.shape
        if (heads, width) != (num_heads, head_dim):
            raise InvalidArgument(
                f"additive for {heads} heads of {width}; there are {num_heads} of {head_dim}"
            )

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
        return additive_attention(
            query, key, value, self.pattern, w_q=self.w_q, w_k=self.w_k, w_v=self.w_v,
            dropout_p=self.dropout if self.training else 0.0, q_tokens=q_tokens, k_tokens=k_tokens,
        )  # fmt: skip

    def weights(
        self,
        query: Tensor,
        key: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> Tensor:
        """The weight of each pair, (B, H, L, S), before dropout."""
        return additive_attention_weights(
            query, key, self.pattern, w_q=self.w_q, w_k=self.w_k, w_v=self.w_v,
            q_tokens=q_tokens, k_tokens=k_tokens,
        )  # fmt: skip

    def work(self, asked: Asked) -> Work:
        """W_q query and W_k key for each query head, then hidden + Ev for each pair that looks.

        All pairs are computed, whatever the pattern. See ``eyeline.cost``.
        """
        heads, hidden, width = self.w_q.shape
        call = asked.known("additive", heads=heads, head_dim=width).call
        pairs = of_pattern(self.pattern, call).pairs
        every = heads * call.length * call.key_length
        once = heads * (call.length + call.key_length) * hidden * width
        each = hidden + call.value_dim
        return Work(
            call, pairs, every, once + pairs * each, once + every * each,
            numbers=call.numbers + numbers_in(self),
        )  # fmt: skip

    def extra_repr(self) -> str:
        heads, hidden, width = self.w_q.shape
        return f"num_heads={heads}, head_dim={width}, hidden={hidden}, {self.pattern}"
