"""Attention within clusters of equal size, as the Routing Transformer has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument
from eyeline.exact.call import Call, PatternLike, check_call
from eyeline.functional.routed import routed_attention
from eyeline.functional.unit import unit
from eyeline.kernels.autograd import eager
from eyeline.patterns import Full
from eyeline.routing import Route
from eyeline.routing.membership import Members, members, membership
from eyeline.routing.nearest import sums
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
    wide = torch.promote_types(call.query.dtype, torch.float32)
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
