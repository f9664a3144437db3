"""Attention within clusters of equal size, as the Routing Transformer has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar, final

import torch
from torch import Tensor
from torch.nn import functional

from eyeline.checks import check_number, check_size, probability, wide_dtype
from eyeline.errors import InvalidArgument
from eyeline.exact.call import Call, PatternLike, as_pattern, check_call
from eyeline.kernels.autograd import eager
from eyeline.kernels.route import Route
from eyeline.mechanisms.base import Causality, Heads, register
from eyeline.mechanisms.routed.attend import RoutedMechanism, routed_attention
from eyeline.mechanisms.routed.clusters import first_centroids, moved, sums, unit
from eyeline.mechanisms.routed.membership import Members, members, membership
from eyeline.patterns import Full
from eyeline.patterns.ahead import never_looks_ahead
from eyeline.planning.cost import Asked, Work, of_pattern
from eyeline.tokens import NOBODY, Tokens

Found = TypeVar("Found")


class Unit(NamedTuple):
    """Queries (B, H, L, E) and keys (B, H, S, E) of length 1, and where they stand."""

    query: Tensor
    key: Tensor
    q_tokens: Tokens
    k_tokens: Tokens


class Nearest(NamedTuple):
    """Of the queries and keys x/‖x‖ that are nearest to each centroid, in all rows together: the
    sum (H, C, E), how many (H, C, 1), and Σ |x/‖x‖|², which is the number of those that are not 0.
    """

    total: Tensor
    size: Tensor
    squares: Tensor


def kmeans_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    centroids: Tensor,
    *,
    window: int,
    pattern: PatternLike = Full(),
    scale: float | None = None,
    dropout_p: float = 0.0,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
) -> tuple[Tensor, Tensor]:
    """out[i] = Σ_j m_ij exp(s_ij) v_j / Σ_j m_ij exp(s_ij); and loss = mean |x/‖x‖ - μ(x)|².

    m_ij: how many clusters hold both i and j, if the pattern allows the pair; s_ij = scale ·
    query[i]·key[j]. Centroid c has as members the ``window`` queries and the ``window`` keys with
    the greatest x·c/‖x‖; of several documents, ⌈window · n_d / n⌉ of each, and nobody looks into
    another one. A query that is a member of nothing gets 0.

    loss: over all queries and keys x, nobody left out, in all heads; μ(x) is the centroid nearest
    to x. Its gradient draws x towards it; centroids get none.

    Shapes, tokens and errors are those of ``attention``; centroids (H, C, E), of length 1. Returns
    (B, H, L, Ev) and a number. Routing and loss are at least float32. Choosing takes
    C · (L + S) · E multiplications a head, looking C · window² · (E + Ev), and memory is linear.
    Of each document a cluster takes one token at least: of D documents up to (window + D)² pairs.
    Roy et al. 2020, "Efficient Content-Based Sparse Attention with Routing Transformers".
    """
    call = check_call(
        query, key, value, pattern,
        scale=scale, dropout_p=dropout_p, q_tokens=q_tokens, k_tokens=k_tokens,
    )  # fmt: skip
    check_centroids(call, centroids)
    given = units(call)
    found = members_of(given, centroids, window)
    out = routed_attention(
        query, key, value, found.route, pattern,
        scale=scale, dropout_p=dropout_p, q_tokens=given.q_tokens, k_tokens=given.k_tokens,
    )  # fmt: skip
    return out, distance(nearest_of(given, found, centroids.shape[1]), centroids)


def check_centroids(call: Call, centroids: Tensor) -> None:
    """Raise InvalidArgument for centroids of other heads."""
    heads, width = call.query.shape[1], call.query.shape[3]
    if centroids.dim() != 3 or (centroids.shape[0], centroids.shape[2]) != (heads, width):
        raise InvalidArgument(
            f"centroids {tuple(centroids.shape)}: ({heads}, clusters, {width}) for {heads} heads "
            f"of {width}"
        )
    apart = (torch.linalg.vector_norm(centroids.double(), dim=-1) - 1.0).abs()
    if apart.numel() and not float(apart.max()) <= 0.01:
        raise InvalidArgument(
            f"centroids are up to {float(apart.max()):.2g} longer or shorter than 1: give c/‖c‖"
        )


def units(call: Call) -> Unit:
    """x/‖x‖ of queries and keys, in float32, or float64 for float64; 0 stays 0."""
    wide = wide_dtype(call.query)
    query, key = unit(call.query.to(wide)), unit(call.key.to(wide))
    groups = query.shape[1] // key.shape[1]
    key = key.repeat_interleave(groups, 1) if groups > 1 else key
    return Unit(query, key, *call.standing)


def route_of(given: Unit, centroids: Tensor, window: int) -> Route:
    """A block for each cluster, see ``membership``."""
    return _asked(membership, given, centroids, window)


def members_of(given: Unit, centroids: Tensor, window: int) -> Members:
    """The same, and who is nearest to whom."""
    return _asked(members, given, centroids, window)


def _asked(ask: Callable[..., Found], given: Unit, centroids: Tensor, window: int) -> Found:
    def found() -> Found:
        with torch.no_grad(), torch.autocast(given.query.device.type, enabled=False):
            return ask(
                given.query, given.key, centroids.to(given.query.dtype), window,
                q_tokens=given.q_tokens, k_tokens=given.k_tokens,
            )  # fmt: skip

    return eager(found)


def nearest_of(given: Unit, found: Members, clusters: int) -> Nearest:
    """Who is nearest to what. The sums are differentiable in x."""
    sides = (given.query, found.q_nearest), (given.key, found.k_nearest)
    each = [_nearest(x, chosen, clusters) for x, chosen in sides]
    return Nearest(*(one + other for one, other in zip(*each, strict=True)))


def _nearest(x: Tensor, chosen: Tensor, clusters: int) -> Nearest:
    with torch.no_grad():
        squares = torch.linalg.vector_norm(x, dim=3).square()
        squares = squares.masked_fill(chosen == NOBODY, 0.0).sum()
    rows, which = x.transpose(0, 1).flatten(1, 2), chosen.transpose(0, 1).flatten(1)
    return Nearest(*sums(rows, which, clusters), squares)


def vectors(given: Unit) -> Tensor:
    """Queries and keys of all rows, of those who are there: (H, n, E)."""
    sides = (given.query, given.q_tokens), (given.key, given.k_tokens)
    there = [
        (tokens.positions.to(x.device) != NOBODY).expand(x.shape[0], x.shape[2]).flatten()
        for x, tokens in sides
    ]
    each = [x.transpose(0, 1).flatten(1, 2) for x, _ in sides]
    return torch.cat([x[:, who] for x, who in zip(each, there, strict=True)], 1)


def distance(given: Nearest, centroids: Tensor) -> Tensor:
    """The mean of |x - nearest centroid|² = |x|² + |c|² - 2 x·c, 0 if nobody is there."""
    # Of its own memory: running centroids move on before the backward pass.
    c = centroids.detach().to(given.total.dtype, copy=True)
    squares = given.squares + (given.size * c.square()).sum()
    return (squares - 2 * (given.total * c).sum()) / given.size.sum().clamp(min=1)


# k-means routing as a module for a layer: clusters of equal size around running centroids.

_SAW_ALL = "each cluster takes the best of the whole text"


@register("kmeans")
@final
class KMeans(RoutedMechanism):
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
        drawn = torch.Generator().manual_seed(seed)
        first = torch.randn(num_heads, clusters, head_dim, generator=drawn)
        self.register_buffer("centroids", functional.normalize(first, dim=-1))
        self.register_buffer("begun", torch.zeros((), dtype=torch.bool))

    @classmethod
    def fitted(cls, options: Mapping[str, Any], length: int) -> dict[str, Any]:
        """As many clusters as windows fit into the length."""
        if not isinstance(window := options.get("window"), int):
            return dict(options)
        return {"clusters": max(length // max(window, 1), 1), **options}

    @property
    def causality(self) -> Causality:
        """ "edge" or "none"."""
        return "edge" if never_looks_ahead(self.pattern) else "none"

    def check_heads(self, heads: Heads) -> None:
        """Raise InvalidArgument if it was made for other heads."""
        self._check_made(heads, num_heads=self.num_heads, head_dim=self.head_dim)
        super().check_heads(heads)

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

    @property
    def promise(self) -> str:
        """ "edge: …" or "none: …"."""
        ahead = f"under {self.pattern} tokens may look ahead"
        return f"{self.causality}: {_SAW_ALL if self.causality == 'edge' else ahead}"

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
        self.check_heads(Heads.of(query, key))
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

    def extra_repr(self) -> str:
        parts = [f"clusters={self.clusters}", f"window={self.window}", str(self.pattern)]
        return ", ".join([*parts, f"decay={self.decay:g}", f"commitment={self.commitment:g}"])
