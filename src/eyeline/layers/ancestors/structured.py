"""Structured self-attention: a sentence as a few weighted sums of its words (Lin et al. 2017)."""

from __future__ import annotations

import math
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from eyeline.errors import NotSupported
from eyeline.layers.checks import check_input, check_sizes, check_tokens
from eyeline.layers.ordering import nobody
from eyeline.planning.cost import Asked, Work, numbers_in
from eyeline.tokens import Tokens


class Structured(NamedTuple):
    """embedding M (B, hops, width); weights A (B, hops, L); penalty (B,): ‖AAᵀ - I‖²_F of each."""

    embedding: Tensor
    weights: Tensor
    penalty: Tensor


@final
class StructuredAttention(nn.Module):
    """A = softmax(W_2 tanh(W_1 Hᵀ)) over the words, M = A H, penalty = ‖AAᵀ - I‖²_F.

    H: (B, L, width), for example what a recurrent layer gives. W_1: (hidden, width), W_2: (hops,
    hidden), in the paper without biases: ``first`` and ``second``. Each hop is one weighting of
    the words; the penalty, added to the loss with a factor of its own, keeps hops from looking at
    the same ones, and single words from being shared out.

    Nobody (-1) gets weight 0; of an empty sentence A and M are 0. One set of weights serves any
    length, at hops · L · width multiplications; it has no causality. Lin et al. 2017, "A
    Structured Self-Attentive Sentence Embedding".

    Raises InvalidArgument for sizes below 1.
    """

    causality = "none"

    def __init__(self, width: int, hidden: int, hops: int) -> None:
        super().__init__()
        check_sizes(width=width, hidden=hidden, hops=hops)
        self.width = width
        self.first = nn.Linear(width, hidden, bias=False)
        self.second = nn.Linear(hidden, hops, bias=False)

    def forward(self, x: Tensor, *, q_tokens: Tokens | None = None) -> Structured:
        """(B, L, width) to the sentences' embeddings, weights and penalties."""
        check_input("x", x, self.width, self.first.weight)
        if q_tokens is None:
            weight = self._scores(x).softmax(-1)
        else:
            check_tokens("q_tokens", q_tokens, *x.shape[:2])
            unseen = nobody(q_tokens, x.device)
            x = x.masked_fill(unseen[..., None], 0.0)
            score = self._scores(x).masked_fill(unseen[:, None], -math.inf)
            weight = score.softmax(-1).masked_fill(unseen[:, None], 0.0)  # NaN where all are
        identity = torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device)
        penalty = (weight @ weight.mT - identity).square().sum((1, 2))
        return Structured(weight @ x, weight, penalty)

    def work(self, asked: Asked) -> Work:
        """L · hidden · (width + hops) for the scores, L · hops · width for M, and L · hops² for the
        penalty; see ``eyeline.cost``."""
        call = asked.without_heads("structured self-attention", self.width)
        n, (hops, hidden) = call.length, self.second.weight.shape
        made = n * (hidden * (self.width + hops) + hops * self.width + hops**2)
        numbers = (n + hops) * self.width + numbers_in(self)
        return Work(call, n * hops, n * hops, made, made, numbers=numbers)

    def path(self, length: int) -> int:
        """Raises NotSupported: words become one matrix, and do not hear each other."""
        raise NotSupported("structured self-attention makes no tokens: words reach its matrix")

    def _scores(self, x: Tensor) -> Tensor:
        scores: Tensor = self.second(self.first(x).tanh()).mT
        return scores
