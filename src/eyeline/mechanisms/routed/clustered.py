"""Clustered attention: queries of a cluster share its weights, but for the keys they see most."""

from __future__ import annotations

from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.nn import functional

from eyeline.budgets import at_once, budgets
from eyeline.checks import check_size, probability, wide_dtype
from eyeline.errors import NotSupported
from eyeline.exact.attention import attention, attention_with_lse
from eyeline.exact.call import Call, PatternLike, as_pattern, check_call
from eyeline.kernels.autograd import eager
from eyeline.kernels.merge import share
from eyeline.kernels.route import Route
from eyeline.mechanisms.base import Heads, Mechanism, register
from eyeline.mechanisms.routed.attend import (
    RoutedMechanism,
    routed_attention,
    routed_attention_with_lse,
    told,
)
from eyeline.mechanisms.routed.best import among_greatest
from eyeline.mechanisms.routed.clusters import centre_tokens, clustered, means
from eyeline.patterns import Full, Pattern
from eyeline.planning import pairs
from eyeline.planning.cost import Asked, Work
from eyeline.tokens import NOBODY, Tokens
from eyeline.tokens.groups import ByDocument, by_document

# Queries of one cluster, block by block, and the keys that their centre looks at most.


@torch.no_grad()
def best_keys(
    centres: Tensor, key: Tensor, topk: int, *, c_tokens: Tokens, k_tokens: Tokens
) -> Tensor:
    """The slots of the ``topk`` keys with the greatest centre·key, (B, H, C, k); -1 where none is.

    centres (B, H, C, E) look at keys (B, Hk, S, E) of their own document; k is at most S.
    """
    width = max(min(topk, key.shape[2]), 1)
    found = torch.full((*centres.shape[:3], width), NOBODY, device=key.device)
    key = key.repeat_interleave(centres.shape[1] // key.shape[1], 1)
    for b in range(key.shape[0]):
        own = by_document(c_tokens.row(b), key.device)
        for there, slots in _together(own, by_document(k_tokens.row(b), key.device)):
            best = _best(centres[b][:, there], key[b][:, slots], min(topk, len(slots)))
            found[b, :, there, : best.shape[2]] = slots[best]
    return found


def _together(centres: ByDocument, keys: ByDocument) -> list[tuple[Tensor, Tensor]]:
    """The slots of centres and keys of each document that has both."""
    of_keys = {each.document: keys.slots[each.start : each.stop] for each in keys.stretches}
    return [
        (centres.slots[each.start : each.stop], of_keys[each.document])
        for each in centres.stretches
        if each.document in of_keys
    ]


def _best(centres: Tensor, keys: Tensor, count: int) -> Tensor:
    """The places (H, c, count) of the keys, in their order."""
    step = at_once(keys.shape[0] * keys.shape[1], budgets.numbers)
    parts = [among_greatest(some @ keys.mT, count) for some in centres.split(step, 1)]
    return torch.cat(parts, 1).sort(2).values


@torch.no_grad()
def of_centres(best: Tensor) -> Route:
    """Each centre looks at its best keys (B, H, C, k): a block of one query."""
    count, width = best.shape[2:]
    centres = torch.arange(count, device=best.device).expand(*best.shape[:2], 1, -1)
    return Route(centres, best.flatten(2).unsqueeze(2), 1, width, width)


@torch.no_grad()
def of_members(chosen: Tensor, best: Tensor, rows: int) -> Route:
    """Each query looks at the best keys of its cluster: blocks of ``rows`` queries of one cluster.

    chosen (B, H, L): each query's cluster, -1 for nobody; best (B, H, C, k). A cluster of m
    queries has ⌈m / rows⌉ blocks, so that there are at most L / rows + C in all.
    """
    clusters = best.shape[2]
    flat = chosen.flatten(0, 1)
    sizes = _sizes(flat, clusters)
    blocks = (sizes + rows - 1) // rows
    first = blocks.cumsum(1) - blocks
    most = int(blocks.sum(1).max())
    order = flat.masked_fill(flat == NOBODY, clusters).argsort(dim=1, stable=True)
    ordered = flat.gather(1, order)
    before = (sizes.cumsum(1) - sizes).gather(1, ordered.clamp(min=0))
    rank = torch.arange(flat.shape[1], device=flat.device) - before
    place = first.gather(1, ordered.clamp(min=0)) * rows + rank
    place = place.masked_fill(ordered == NOBODY, most * rows)
    queries = flat.new_full((flat.shape[0], most * rows + 1), NOBODY)
    queries = queries.scatter_(1, place, order)[:, :-1]
    of_block = torch.searchsorted(blocks.cumsum(1), _count_up(flat, most), right=True)
    keys = functional.pad(best.flatten(0, 1), (0, 0, 0, 1), value=NOBODY)
    width = best.shape[3]
    keys = keys.gather(1, of_block[..., None].expand(-1, -1, width))
    shape = *chosen.shape[:2], 1, -1
    return Route(queries.view(shape), keys.view(shape), rows, width, width)


def _sizes(chosen: Tensor, count: int) -> Tensor:
    """How many chose each of ``count`` clusters, (R, count)."""
    sizes = chosen.new_zeros(chosen.shape[0], count + 1)
    slots = chosen.masked_fill(chosen == NOBODY, count)
    return sizes.scatter_add_(1, slots, torch.ones_like(chosen))[:, :-1].contiguous()


def _count_up(like: Tensor, stop: int) -> Tensor:
    """0 … stop - 1 in each row."""
    return torch.arange(stop, device=like.device).expand(like.shape[0], -1).contiguous()


# Clustered attention: queries of a cluster share its weights, but for the keys that matter.

_MOST_ROWS = 64
_ROUNDS = 10


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
        return sum(pairs(Full(), q_tokens=c, k_tokens=k) for c, k in rows)


def clustered_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    clusters: int,
    topk: int,
    rounds: int = _ROUNDS,
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

    Raises NotSupported for patterns but Full(). Vyas et al. 2020, "Fast
    Transformers with Clustered Attention".
    """
    rule = only_full(pattern)
    call = check_call(
        query, key, value, rule,
        scale=scale, dropout_p=dropout_p, q_tokens=q_tokens, k_tokens=k_tokens,
    )  # fmt: skip
    if not (query.shape[0] and query.shape[2] and key.shape[2]):
        return attention(query, key, value, scale=call.scale)
    given = clusters_of(call, clusters, topk, rounds)
    return _looked(call, given)


def only_full(pattern: PatternLike) -> Pattern:
    """The pattern. Raises NotSupported for what a mean of queries cannot honour."""
    rule = as_pattern(pattern)
    if rule != Full():
        raise NotSupported(
            f"clustered queries look by the mean of queries that stand at several positions, and "
            f"cannot honour {rule}: full() only; kmeans(…) knows any pattern"
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
    wide = wide_dtype(call.query)
    query, key = call.query.to(wide), call.key.to(wide)
    chosen = clustered(query, q_tokens, clusters, rounds)
    tokens = centre_tokens(q_tokens, clusters)
    mean, _ = means(query.flatten(0, 1), chosen.flatten(0, 1), tokens.length)
    centres = mean.view(*query.shape[:2], tokens.length, -1)
    # A negative scale would turn the order round.
    ranked = centres * call.scale
    best = best_keys(ranked, key, topk, c_tokens=tokens, k_tokens=k_tokens)
    return Clusters(chosen, centres, best, q_tokens, tokens, k_tokens)


def _looked(call: Call, given: Clusters) -> Tensor:
    """out_i = m_c · exact_i + (all_c - m_c · top_c): what the centre sees, its best keys apart."""
    c_tokens, k_tokens = given.c_tokens, given.k_tokens
    route = eager(lambda: given.route)
    exact = routed_attention(
        call.query, call.key, call.value, route, Full(), scale=call.scale,
        dropout_p=call.dropout_p, q_tokens=given.q_tokens, k_tokens=k_tokens,
    )  # fmt: skip
    with torch.autocast(call.query.device.type, enabled=False):
        # There are few centres, and what is the same in both must cancel.
        wide = torch.float32 if call.query.dtype.itemsize < 4 else torch.float64
        centres, key, value = (x.to(wide) for x in (given.centres, call.key, call.value))
        whole, lse = attention_with_lse(
            centres, key, value, Full(), scale=call.scale, q_tokens=c_tokens, k_tokens=k_tokens
        )
        few, lse_few = routed_attention_with_lse(
            centres, key, value, of_centres(given.best), Full(),
            scale=call.scale, q_tokens=c_tokens, k_tokens=k_tokens,
        )  # fmt: skip
        mass = share(lse_few, lse).unsqueeze(-1)
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


# Clustered queries as a module for a layer.


@register("clustered")
@final
class ClusteredQueries(RoutedMechanism):
    """out_i = m_c · softmax_{j ∈ T_c}(q_i·k_j/√E) v_j + Σ_{l ∉ T_c} A[c, l] v_l, c: i's cluster.

    clusters: of a head's queries, by ``rounds`` of k-means. A[c] are the weights of the mean of
    their queries; T_c its ``topk`` greatest, which are computed anew for each query, and keep the
    mass m_c that they had. See ``clustered_attention``. pattern: Full().
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
        rounds: int = _ROUNDS,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        for name, size in {"clusters": clusters, "topk": topk, "rounds": rounds}.items():
            check_size(f"clustered {name}", size)
        self.pattern = only_full(pattern)
        self.clusters, self.topk, self.rounds = clusters, topk, rounds
        self.dropout = probability("dropout", dropout)

    def check_heads(self, heads: Heads) -> None:
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

    def weights(
        self,
        query: Tensor,
        key: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> Tensor:
        """The weight of each pair, (B, H, L, S): those of the cluster, but for its best keys."""
        return Mechanism.weights(self, query, key, q_tokens=q_tokens, k_tokens=k_tokens)

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

    def path(self, length: int) -> int | Pattern:
        """1 if anybody hears somebody else: every query looks at every key."""
        return int(length >= 2)

    def extra_repr(self) -> str:
        return f"clusters={self.clusters}, topk={self.topk}, {self.pattern}, rounds={self.rounds}"
