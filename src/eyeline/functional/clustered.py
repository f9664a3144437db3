"""Clustered attention: queries of a cluster share its weights, but for the keys that matter."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from eyeline.checks import check_size
from eyeline.errors import NotSupported
from eyeline.exact.attention import attention, attention_with_lse
from eyeline.exact.call import Call, PatternLike, as_pattern, check_call
from eyeline.functional.routed import routed_attention, routed_attention_with_lse
from eyeline.kernels.autograd import eager
from eyeline.patterns import Full, Pattern, SameDocument
from eyeline.planning import pairs
from eyeline.routing import Route
from eyeline.routing.cluster_route import best_keys, of_centres, of_members
from eyeline.routing.lloyd import centre_tokens, clustered
from eyeline.routing.nearest import means
from eyeline.tokens import Tokens

_MOST_ROWS = 64


class Clusters(NamedTuple):
    """chosen (B, H, L): each query's cluster, -1 for nobody. centres (B, H, C, E): means of
    queries. best (B, H, C, k): slots of the keys that each looks at most, -1 where none is."""

    chosen: Tensor
    centres: Tensor
    best: Tensor
    q_tokens: Tokens
    c_tokens: Tokens
    k_tokens: Tokens

    @property
    def route(self) -> Route:
        """The pairs that are computed one by one: a cluster's queries with its best keys."""
        members = -(-self.chosen.shape[2] // self.best.shape[2])
        return of_members(self.chosen, self.best, min(max(members // 2, 1), _MOST_ROWS))

    def seen(self, batch: int) -> int:
        """How many pairs of a centre and a key look, over the rows of a batch, in one head."""
        rows = [(self.c_tokens.row(b), self.k_tokens.row(b)) for b in range(batch)]
        return sum(pairs(_rule(self), q_tokens=c, k_tokens=k) for c, k in rows)


def clustered_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    clusters: int,
    topk: int,
    rounds: int = 10,
    pattern: PatternLike = Full(),
    scale: float | None = None,
    dropout_p: float = 0.0,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
) -> Tensor:
    """out[i] = m_c · softmax_{j ∈ T_c}(scale · query[i]·key[j]) v_j + Σ_{l ∉ T_c} A[c, l] v_l.

    c is the cluster of i; A[c] = softmax(scale · mean of its queries · keyᵀ) over all keys; T_c
    are its ``topk`` greatest, and m_c = Σ_{j ∈ T_c} A[c, j] is the mass that they keep.

    clusters: of the queries of a row, by ``rounds`` of k-means from queries that are evenly spaced
    in the order of positions; nothing is drawn by chance. Documents share them by their sizes,
    ⌈clusters · n_d / n⌉ each, and look at themselves only. dropout_p: of the weights of T_c.
    With topk ≥ S, or with a cluster for each query, it is exact attention.

    Shapes, tokens and errors are those of ``attention``. Multiplications of a head:
    clusters · (L·E·(rounds + 1) + S·(2E + Ev)) + L · topk · (E + Ev); memory is linear. First
    derivatives, through weights and means; the choice of clusters and keys has none.

    Raises NotSupported for patterns but Full() and SameDocument(). Vyas et al. 2020, "Fast
    Transformers with Clustered Attention".
    """
    rule = only_documents(pattern)
    call = check_call(
        query, key, value, rule,
        scale=scale, dropout_p=dropout_p, q_tokens=q_tokens, k_tokens=k_tokens,
    )  # fmt: skip
    if not (query.shape[0] and query.shape[2] and key.shape[2]):
        return attention(query, key, value, scale=call.scale)
    given = clusters_of(call, clusters, topk, rounds)
    return _looked(call, given, _rule(given))


def only_documents(pattern: PatternLike) -> Pattern:
    """The pattern. Raises NotSupported for what a mean of queries cannot honour."""
    rule = as_pattern(pattern)
    if rule not in (Full(), SameDocument()):
        raise NotSupported(
            f"clustered queries look by the mean of queries that stand at several positions, and "
            f"cannot honour {rule}: full() and same_document only; kmeans(…) knows any pattern"
        )
    return rule


def clusters_of(call: Call, clusters: int, topk: int, rounds: int) -> Clusters:
    """Queries in clusters, and the keys that matter to each."""
    for name, size in (("clusters", clusters), ("topk", topk), ("rounds", rounds)):
        check_size(f"clustered {name}", size)
    q, k = call.standing

    def found() -> Clusters:
        with torch.autocast(call.query.device.type, enabled=False):
            return _clusters(call, q, k, clusters, topk, rounds)

    return eager(found)


def _clusters(
    call: Call, q_tokens: Tokens, k_tokens: Tokens, clusters: int, topk: int, rounds: int
) -> Clusters:
    wide = torch.promote_types(call.query.dtype, torch.float32)
    query, key = call.query.to(wide), call.key.to(wide)
    chosen = clustered(query, q_tokens, clusters, rounds)
    tokens = centre_tokens(q_tokens, clusters)
    mean, _ = means(query.flatten(0, 1), chosen.flatten(0, 1), tokens.length)
    centres = mean.view(*query.shape[:2], tokens.length, -1)
    # A negative scale would turn the order round.
    ranked = centres * call.scale
    best = best_keys(ranked, key, topk, c_tokens=tokens, k_tokens=k_tokens)
    return Clusters(chosen, centres, best, q_tokens, tokens, k_tokens)


def _rule(given: Clusters) -> Pattern:
    return Full() if given.q_tokens.documents is None else SameDocument()


def _looked(call: Call, given: Clusters, rule: Pattern) -> Tensor:
    """out_i = m_c · exact_i + (all_c - m_c · top_c): what the centre sees, its best keys apart."""
    c_tokens, k_tokens = given.c_tokens, given.k_tokens
    route = eager(lambda: given.route)
    exact = routed_attention(
        call.query, call.key, call.value, route, rule, scale=call.scale,
        dropout_p=call.dropout_p, q_tokens=given.q_tokens, k_tokens=k_tokens,
    )  # fmt: skip
    with torch.autocast(call.query.device.type, enabled=False):
        # There are few centres, and what is the same in both must cancel.
        wide = torch.float32 if call.query.dtype.itemsize < 4 else torch.float64
        centres, key, value = (x.to(wide) for x in (given.centres, call.key, call.value))
        whole, lse = attention_with_lse(
            centres, key, value, rule, scale=call.scale, q_tokens=c_tokens, k_tokens=k_tokens
        )
        few, lse_few = routed_attention_with_lse(
            centres, key, value, of_centres(given.best), rule,
            scale=call.scale, q_tokens=c_tokens, k_tokens=k_tokens,
        )  # fmt: skip
        # Who has no keys has no mass: exp(-inf - 0) = 0.
        mass = (lse_few - lse.masked_fill(lse == -torch.inf, 0.0)).exp().unsqueeze(-1)
        rest = whole.to(mass.dtype) - mass * few.to(mass.dtype)
        both = torch.cat((rest, mass), -1)
        own = _of_members(both, given.chosen)
        return (own[..., :-1] + own[..., -1:] * exact.to(mass.dtype)).to(call.query.dtype)


def _of_members(x: Tensor, chosen: Tensor) -> Tensor:
    """What each query's cluster has: (B, H, C, E) to (B, H, L, E), 0 for nobody."""
    count = x.shape[2]
    rows = torch.arange(x.shape[0] * x.shape[1], device=x.device).view(*x.shape[:2], 1) * count
    taken = x.flatten(0, 2).index_select(0, (rows + chosen.clamp(min=0)).flatten())
    return taken.view(*chosen.shape, -1).masked_fill((chosen < 0).unsqueeze(-1), 0.0)
