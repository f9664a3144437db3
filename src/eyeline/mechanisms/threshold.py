"""Attention to the keys whose weight reaches a threshold."""

from __future__ import annotations

from typing import final

from torch import Tensor

from eyeline.exact.call import PatternLike
from eyeline.functional.threshold import check_threshold, threshold_route
from eyeline.mechanisms.picking import Picking
from eyeline.patterns import Full
from eyeline.routing import Route
from eyeline.routing.best import at_most
from eyeline.tokens import Tokens


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
