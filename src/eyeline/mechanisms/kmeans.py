"""k-means routing as a module for a layer: clusters of equal size around running centroids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from eyeline.checks import check_number, check_size
from eyeline.errors import InvalidArgument
from eyeline.exact.call import (
    Call,
    PatternLike,
    as_pattern,
    check_call,
    check_pattern_heads,
    probability,
)  # fmt: skip
from eyeline.functional.kmeans import (
    Nearest,
    Unit,
    distance,
    members_of,
    nearest_of,
    route_of,
    units,
    vectors,
)  # fmt: skip
from eyeline.functional.routed import routed_attention
from eyeline.kernels.autograd import eager
from eyeline.mechanisms.told import told
from eyeline.patterns import Full
from eyeline.patterns.ahead import never_looks_ahead
from eyeline.planning.cost import Asked, Work, of_pattern
from eyeline.routing import Route
from eyeline.routing.running import first_centroids, moved
from eyeline.tokens import Tokens

_SAW_ALL = "each cluster takes the best of the whole text"


@final
class KMeans(nn.Module):
    """out_i = Σ_j m_ij exp(q_i·k_j/√E) v_j / Σ_j m_ij exp(q_i·k_j/√E), m_ij: shared clusters.

    Each head has ``clusters`` centroids. A centroid takes the ``window`` queries and the
    ``window`` keys that point most in its direction (all if there are fewer), so that all clusters
    are of one size; see ``kmeans_attention``. Choosing is by x/‖x‖; scores are of queries and keys
    as they are, where the paper normalises both: give it such, and it is the paper's. Causal
    heads of the paper have equal queries and keys; here they may be any.

    pattern: what a pair must be allowed besides; any. dropout: of weights, while training.
    decay: in each forward pass of training a centroid becomes decay · itself + (1 - decay) · the
    mean of the queries and keys nearest to it, brought to length 1. The first such pass
    chooses the centroids by k-means of its own queries and keys; until then they are drawn by
    ``seed``. Several processes move their own each; Eyeline's training and torch's
    DistributedDataParallel keep one for all.
    commitment: ``auxiliary``, after a forward pass in training, is commitment · mean |x/‖x‖ -
    nearest centroid|², to be added to the loss (``auxiliary_loss``); in eval it is None.

    causality: "edge" under a pattern that never looks ahead: no value comes from later tokens, but
    who is in a cluster was chosen from all of them; else "none". There is no cache for the same
    reason. A query that no centroid takes gets 0; ``explain`` says how many look.
    Multiplications of a head: clusters · (L + S) · E and clusters · window² · (E + Ev).

    Buffers, kept with the weights: centroids (num_heads, clusters, head_dim), and begun. Raises
    InvalidArgument for sizes below 1 and numbers out of range. Roy et al. 2020.
    """

    moving = ("centroids", "begun")
    no_cache = f"{_SAW_ALL}, and later tokens may take places: read it at once"
    centroids: Tensor
    begun: Tensor

    def __init__(
        self,
        clusters: int,
        window: int,
        *,
        num_heads: int,
        head_dim: int,
        pattern: PatternLike = Full(),
        decay: float = 0.999,
        commitment: float = 1e-4,
        seed: int = 0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        sizes = {
            "clusters": clusters, "window": window, "num_heads": num_heads, "head_dim": head_dim,
        }  # fmt: skip
        for name, size in sizes.items():
            check_size(f"kmeans {name}", size)
        check_number("kmeans commitment", commitment, equal=True)
        self.clusters, self.window = clusters, window
        self.num_heads, self.head_dim = num_heads, head_dim
        self.pattern = as_pattern(pattern)
        self.decay, self.commitment = probability("kmeans decay", decay), commitment
        self.seed, self.dropout = seed, probability("dropout", dropout)
        self.auxiliary: Tensor | None = None
        drawn = torch.Generator().manual_seed(seed)
        first = torch.randn(num_heads, clusters, head_dim, generator=drawn)
        self.register_buffer("centroids", functional.normalize(first, dim=-1))
        self.register_buffer("begun", torch.zeros((), dtype=torch.bool))

    @property
    def causality(self) -> str:
        """ "edge" or "none"."""
        return "edge" if never_looks_ahead(self.pattern) else "none"

    def check(self, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        """Raise InvalidArgument if it was made for other heads."""
        if (self.num_heads, self.head_dim) != (num_heads, head_dim):
            raise InvalidArgument(
                f"kmeans for {self.num_heads} heads of {self.head_dim}; there are {num_heads} of "
                f"{head_dim}"
            )
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
        given = units(self._checked(query, key, value, q_tokens, k_tokens))
        self.auxiliary = None
        if self.training:
            eager(lambda: self._begin(given))
            found = members_of(given, self.centroids, self.window)
            route, nearest = found.route, nearest_of(given, found, self.clusters)
            self.auxiliary = self.commitment * distance(nearest, self.centroids)
            self._move(nearest)
        else:
            route = route_of(given, self.centroids, self.window)
        return routed_attention(
            query, key, value, route, self.pattern,
            dropout_p=self.dropout if self.training else 0.0,
            q_tokens=given.q_tokens, k_tokens=given.k_tokens,
        )  # fmt: skip

    def route(
        self,
        query: Tensor,
        key: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> Route:
        """A block for each cluster, by the centroids as they are."""
        call = self._checked(query, key, key, q_tokens, k_tokens)
        return route_of(units(call), self.centroids, self.window)

    def explain(
        self,
        query: Tensor,
        key: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> dict[str, str]:
        """Causality, pairs, and how many queries look at somebody, in words."""
        route = self.route(query, key, q_tokens=q_tokens, k_tokens=k_tokens)
        ahead = f"under {self.pattern} tokens may look ahead"
        causality = f"{self.causality}: {_SAW_ALL if self.causality == 'edge' else ahead}"
        return told(
            causality, route, query, key, self.pattern, q_tokens=q_tokens, k_tokens=k_tokens
        )

    def work(self, asked: Asked) -> Work:
        """C·(L + S)·E to choose, and C·w² pairs; of these, as the members of clusters are not
        known, the share that the pattern allows of all. See ``eyeline.cost``."""
        call = asked.known("kmeans", heads=self.num_heads, head_dim=self.head_dim).call
        choosing = call.heads * self.clusters * (call.length + call.key_length) * call.head_dim
        rows, columns = (min(self.window, x) for x in (call.length, call.key_length))
        computed = call.heads * self.clusters * rows * columns
        every = max(call.heads * call.length * call.key_length, 1)
        pairs = computed * of_pattern(self.pattern, call).pairs // every
        return Work(
            call, pairs=pairs, computed=computed,
            multiplications=choosing + pairs * call.products,
            computed_multiplications=choosing + computed * call.products,
            numbers=call.numbers + self.centroids.numel(), steps=2,
        )  # fmt: skip

    def _checked(
        self, query: Tensor, key: Tensor, value: Tensor, q: Tokens | None, k: Tokens | None
    ) -> Call:
        call = check_call(query, key, value, self.pattern, scale=None, q_tokens=q, k_tokens=k)
        self.check(query.shape[1], key.shape[1], key.shape[3])
        return call

    @torch.no_grad()
    def _begin(self, given: Unit) -> None:
        """Chooses the centroids, once, from the first that is there to choose from."""
        if bool(self.begun):
            return
        x = vectors(given)
        if x.shape[1] and bool(x.isfinite().all()):
            with torch.autocast(x.device.type, enabled=False):
                self.centroids.copy_(first_centroids(x, self.clusters, self.seed))
            self.begun.fill_(True)

    @torch.no_grad()
    def _move(self, given: Nearest) -> None:
        """One step of the running means, by those that are nearest to each centroid."""
        centroids = self.centroids.to(given.total.dtype)
        new = moved(centroids, given.total, given.size, self.decay)
        # A loss that is not finite is refused after this, and leaves the centroids as they were.
        self.centroids.copy_(torch.where(new.isfinite().all(), new, centroids))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> KMeans:
        """Moves as all modules do, but half types have too few bits for a mean that creeps."""
        kept = self.centroids
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.centroids.dtype.itemsize < 4:
            self.centroids = kept.to(self.centroids.device)
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Without the loss, which belongs to a pass and cannot be copied."""
        return {**self.__dict__, "auxiliary": None}

    def extra_repr(self) -> str:
        parts = [f"clusters={self.clusters}", f"window={self.window}", str(self.pattern)]
        return ", ".join([*parts, f"decay={self.decay:g}", f"commitment={self.commitment:g}"])
