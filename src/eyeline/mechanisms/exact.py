"""Exact attention under a pattern, as a module that a layer can be given."""

from __future__ import annotations

from typing import Any, final

from torch import Tensor, nn

from eyeline.checks import probability
from eyeline.exact import attention, attention_weights, explain
from eyeline.exact.call import PatternLike, ScoreModLike, as_pattern, as_score_mods
from eyeline.mechanisms.base import Heads, Mechanism, register
from eyeline.patterns import Full, Pattern
from eyeline.planning.cost import Asked, Work, of_pattern
from eyeline.tokens import Tokens


@register("exact")
@final
class Exact(Mechanism):
    """out = attention(query, key, value, pattern): softmax over the keys each query may look at.

    score_mod: a ScoreMod, several in order, or a FlexAttention callable; trained ones belong to
    the module's parameters. scale: 1/√E if not given. dropout: the probability with which a
    weight is left out while training; in eval nothing is.

    Causality is the pattern's own: with a causal pattern no past output depends on the future
    ("functional"). It decodes from a cache, since ``pattern.needed`` says what to keep.

    Raises InvalidArgument for a dropout that is not a probability below 1, and for what is no
    pattern or no score_mod.
    """

    pattern: Pattern

    def __init__(
        self,
        pattern: PatternLike = Full(),
        *,
        score_mod: ScoreModLike = None,
        scale: float | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.pattern = as_pattern(pattern)
        self.score_mods = as_score_mods(score_mod)
        self.scale = scale
        self.dropout = probability("dropout", dropout)
        trained = [x for x in self.score_mods if isinstance(x, nn.Module)]
        if trained:  # so that they are found as parts of the module
            self.trained = nn.ModuleList(trained)

    @classmethod
    def filled(cls, heads: Heads, pattern: Pattern, dropout: float) -> dict[str, Any]:
        """A recipe has no words for score modifiers: there are none."""
        return {**super().filled(heads, pattern, dropout), "score_mod": None}

    def check_heads(self, heads: Heads) -> None:
        """Raise InvalidArgument if pattern or score modifiers were made for other heads."""
        super().check_heads(heads)
        for mod in self.score_mods:
            mod.check(heads.num_heads, heads.head_dim, heads.head_dim)

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
            query, key, value, self.pattern,
            score_mod=self.score_mods, scale=self.scale,
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
        """The weight of each pair, (B, H, L, S), before dropout; see ``attention_weights``."""
        return attention_weights(
            query, key, self.pattern,
            score_mod=self.score_mods, scale=self.scale, q_tokens=q_tokens, k_tokens=k_tokens,
        )  # fmt: skip

    def explain(
        self,
        query: Tensor,
        key: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> dict[str, str]:
        """In words: what is promised, and each kernel's answer to the call; see ``explain``."""
        kernels = explain(
            query, key, key, self.pattern,
            score_mod=self.score_mods, scale=self.scale, q_tokens=q_tokens, k_tokens=k_tokens,
        )  # fmt: skip
        return {**super().explain(query, key), **kernels}

    def work(self, asked: Asked) -> Work:
        """A product of E and one of Ev for each pair that looks; see ``eyeline.cost``."""
        return of_pattern(self.pattern, asked.call)

    def extra_repr(self) -> str:
        untrained = [x for x in self.score_mods if not isinstance(x, nn.Module)]
        parts = [str(self.pattern), *(str(x) for x in untrained)]
        parts += [f"scale={self.scale:g}"] if self.scale is not None else []
        return ", ".join(parts + ([f"dropout={self.dropout:g}"] if self.dropout else []))
