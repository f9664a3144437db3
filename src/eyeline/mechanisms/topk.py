"""Attention to the k best keys of each query."""

from __future__ import annotations

from typing import final

from torch import Tensor

from eyeline.checks import check_size
from eyeline.exact.call import PatternLike
from eyeline.functional.topk import topk_route
from eyeline.mechanisms.picking import Picking
from eyeline.patterns import Full
from eyeline.routing import Route
from eyeline.tokens import Tokens


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
