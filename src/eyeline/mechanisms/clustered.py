"""Clustered queries as a module for a layer."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from eyeline.checks import check_size
from eyeline.exact.call import PatternLike, check_call, probability
from eyeline.functional.clustered import (
    Clusters,
    clustered_attention,
    clusters_of,
    only_documents,
)  # fmt: skip
from eyeline.mechanisms.told import told
from eyeline.patterns import Full
from eyeline.planning.cost import Asked, Work
from eyeline.routing import Route
from eyeline.tokens import Tokens


@final
class ClusteredQueries(nn.Module):
    """out_i = m_c · softmax_{j ∈ T_c}(q_i·k_j/√E) v_j + Σ_{l ∉ T_c} A[c, l] v_l, c: i's cluster.

    clusters: of a head's queries, by ``rounds`` of k-means. A[c] are the weights of the mean of
    their queries; T_c its ``topk`` greatest, which are computed anew for each query, and keep the
    mass m_c that they had. See ``clustered_attention``. pattern: Full() or SameDocument().
    dropout: of the weights of T_c, while training.

    Every query looks at every key. causality: "none": a mean holds queries of all places; there
    is no cache, and other patterns are refused (NotSupported). Deterministic.
    Multiplications of a head: clusters · (L·E·(rounds + 1) + S·(2E + Ev)) + L · topk · (E + Ev).
    Raises InvalidArgument for sizes below 1. Vyas et al. 2020 (improved clustered attention).
    """

    causality = "none"
    no_cache = "its clusters hold queries of the whole text, later ones too: read it at once"

    def __init__(
        self,
        clusters: int,
        topk: int,
        *,
        pattern: PatternLike = Full(),
        rounds: int = 10,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        for name, size in {"clusters": clusters, "topk": topk, "rounds": rounds}.items():
            check_size(f"clustered {name}", size)
        self.pattern = only_documents(pattern)
        self.clusters, self.topk, self.rounds = clusters, topk, rounds
        self.dropout = probability("dropout", dropout)

    def check(self, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        """Any heads will do."""

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
        return clustered_attention(
            query, key, value,
            clusters=self.clusters, topk=self.topk, rounds=self.rounds, pattern=self.pattern,
            dropout_p=self.dropout if self.training else 0.0, q_tokens=q_tokens, k_tokens=k_tokens,
        )  # fmt: skip

    def route(
        self,
        query: Tensor,
        key: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> Route:
        """Which pairs are computed one by one. All others share the weights of a cluster."""
        return self._clusters(query, key, q_tokens, k_tokens).route

    def explain(
        self,
        query: Tensor,
        key: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> dict[str, str]:
        """Causality, pairs, and how many keys are looked at one by one, in words."""
        given = self._clusters(query, key, q_tokens, k_tokens)
        causality = "none: clusters hold queries of all places"
        found = told(
            causality, given.route, query, key, self.pattern, q_tokens=q_tokens, k_tokens=k_tokens
        )
        exactly = found.pop("keys that are looked at")
        apart = given.q_tokens.documents is not None
        return {
            **found,
            "pairs of clusters and keys": f"{given.seen(query.shape[0]) * query.shape[1]:,}",
            "keys that are looked at": "by the mean of each cluster all"
            + (" of its document" if apart else ""),
            "keys that queries look at one by one": exactly,
        }

    def _clusters(self, query: Tensor, key: Tensor, q: Tokens | None, k: Tokens | None) -> Clusters:
        call = check_call(query, key, key, self.pattern, scale=None, q_tokens=q, k_tokens=k)
        return clusters_of(call, self.clusters, self.topk, self.rounds)

    def work(self, asked: Asked) -> Work:
        """C·L·E·(rounds + 1) for clusters, C·S·(2E + Ev) for their means, and L·k·(E + Ev); see
        ``eyeline.cost``."""
        call = asked.call
        clusters, best = min(self.clusters, call.length), min(self.topk, call.key_length)
        choosing = call.heads * clusters * call.head_dim
        choosing *= call.length * (self.rounds + 1) + call.key_length
        looking = call.heads * (clusters * (call.key_length + best) + call.length * best)
        # Blocks of one cluster are half empty at the most, on average.
        computed = looking + call.heads * call.length * best
        return Work(
            call, pairs=looking, computed=computed,
            multiplications=choosing + looking * call.products,
            computed_multiplications=choosing + computed * call.products,
            numbers=call.numbers, steps=self.rounds + 3,
        )  # fmt: skip

    def path(self, length: int) -> int:
        """1 if anybody hears somebody else: every query looks at every key."""
        return int(length >= 2)

    def extra_repr(self) -> str:
        return f"clusters={self.clusters}, topk={self.topk}, {self.pattern}, rounds={self.rounds}"
