"""Attention along a route that was found in the content: exact for the pairs that it computes."""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from eyeline.errors import InvalidArgument, NotSupported
from eyeline.exact.call import PatternLike, ScoreModLike, check_call
from eyeline.kernels import reference, routed, scoring
from eyeline.kernels.autograd import eager
from eyeline.kernels.request import Request
from eyeline.kernels.route import Route
from eyeline.kernels.route_pieces import Routed
from eyeline.mechanisms.base import Mechanism
from eyeline.patterns import Full, Pattern
from eyeline.tokens import NOBODY, Tokens
from eyeline.tokens.groups import PositionBlocks

# Attention along a route that was found in the content: exact for the pairs that meet there.


class Coverage(NamedTuple):
    """What share of the queries look at somebody, and of the keys are looked at, from 0 to 1.

    Shares of those slots where somebody stands, over all batch rows and query heads.
    """

    queries: float
    keys: float


def routed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    route: Route,
    pattern: PatternLike = Full(),
    *,
    score_mod: ScoreModLike = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
) -> Tensor:
    """out[i] = Σ_j m_ij exp(s_ij) v_j / Σ_j m_ij exp(s_ij),  s_ij = scale · query[i]·key[j].

    m_ij is how often i and j meet on the route, if the pattern allows the pair, else 0; a query
    that meets no key gets 0. Shapes, tokens and errors are those of ``attention``; the route has
    lanes for each batch row and query head. Work and memory are those of the route's blocks, and
    never L·S. First derivatives; the route has none. Dropout as in ``attention``.

    score_mod: as in ``attention``, done to s_ij before it is counted m_ij times. Where positions
    along the route do not go up evenly, one with a vector for each distance (Shaw, TransformerXL)
    takes the product of each query with all of its vectors. Raises NotSupported for a callable,
    and for positions too far apart for its tables.
    """
    return routed_attention_with_lse(
        query, key, value, route, pattern, score_mod=score_mod,
        scale=scale, dropout_p=dropout_p, q_tokens=q_tokens, k_tokens=k_tokens,
    )[0]  # fmt: skip


def routed_attention_with_lse(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    route: Route,
    pattern: PatternLike = Full(),
    *,
    score_mod: ScoreModLike = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
) -> tuple[Tensor, Tensor]:
    """``routed_attention`` and lse[i] = log Σ_j m_ij exp(s_ij): (B, H, L, Ev) and (B, H, L)."""
    call = check_call(
        query, key, value, pattern, score_mod=score_mod,
        scale=scale, q_tokens=q_tokens, k_tokens=k_tokens, dropout_p=dropout_p,
    )  # fmt: skip
    return eager(lambda: _run(call.request(), route))


def routed_attention_weights(
    query: Tensor,
    key: Tensor,
    route: Route,
    pattern: PatternLike = Full(),
    *,
    score_mod: ScoreModLike = None,
    scale: float | None = None,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
) -> Tensor:
    """weight[i, j] = m_ij exp(s_ij) / Σ_j m_ij exp(s_ij): (B, H, L, S), for short inputs.

    Arguments, and m_ij, are those of ``routed_attention``, whose output is weights @ value and what
    score_mod adds to it; here score_mod may be a callable too. Exactly 0 where i and j do not meet;
    each row sums to 1, or to 0 for a query that meets no key. In the dtype of the query. Memory is
    L·S.
    """
    call = check_call(
        query, key, key, pattern, score_mod=score_mod, sums_values=False,
        scale=scale, q_tokens=q_tokens, k_tokens=k_tokens,
    )  # fmt: skip
    with torch.autocast(query.device.type, enabled=False):
        request = call.request()
        met = times_met(_work(request, route).route, query.shape[2], key.shape[2])
        return reference.weights(request, met)[0].to(call.query.dtype)


@torch.no_grad()
def times_met(route: Route, queries: int, keys: int) -> Tensor:
    """How often each query and key meet on the route, whatever the pattern: int64 (B, H, L, S)."""
    if not route.blocks:
        return route.queries.new_zeros(*route.queries.shape[:2], queries, keys)
    asking = route.queries.unflatten(3, (route.blocks, route.rows)).unsqueeze(5)
    asked = route.keys.unfold(3, route.columns, route.step).unsqueeze(4)
    meets = (asking != NOBODY) & (asked != NOBODY)
    if route.q_labels is not None and route.k_labels is not None:
        label = route.q_labels.unflatten(3, (route.blocks, route.rows)).unsqueeze(5)
        meets &= label == route.k_labels.unfold(3, route.columns, route.step).unsqueeze(4)
    if route.band is not None:
        meets &= route.band
    pair = (asking.clamp(min=0) * keys + asked.clamp(min=0)).flatten(2)
    heads = route.queries.shape[:2]
    none: Tensor = pair.new_zeros(*heads, queries * keys)
    return none.scatter_add(2, pair, meets.flatten(2).long()).view(*heads, queries, keys)


def coverage(
    query: Tensor,
    key: Tensor,
    route: Route,
    pattern: PatternLike = Full(),
    *,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
) -> Coverage:
    """How many the route reaches: of a mechanism that leaves nobody out both are 1."""
    call = check_call(query, key, key, pattern, scale=None, q_tokens=q_tokens, k_tokens=k_tokens)
    work = _work(call.request(), route)
    looks, seen = routed.reached(work)
    return Coverage(*(_share(x, y) for x, y in ((looks, work.q_tokens), (seen, work.k_tokens))))


def _run(request: Request, route: Route) -> tuple[Tensor, Tensor]:
    reason = scoring.refusal(request)
    if request.called is not None:
        reason = "a callable score_mod shows it no derivative: give a ScoreMod"
    if reason is not None:
        raise NotSupported(f"attention along a route, for {request.sizes}: {reason}")
    with torch.autocast(request.query.device.type, enabled=False):
        work, tables = _work(request, route), scoring.tables(request)
        return routed.run(work, request.query, request.key, request.value, tables)


def _work(request: Request, route: Route) -> Routed:
    batch, heads, queries, _ = request.query.shape
    keys = request.key.shape[2]
    if route.queries.shape[:2] != (batch, heads):
        raise InvalidArgument(f"{route.sizes} for {batch} rows of {heads} heads")
    for name, slots, length in (("query", route.queries, queries), ("key", route.keys, keys)):
        if slots.numel() and not -1 <= int(slots.min()) <= int(slots.max()) < length:
            raise InvalidArgument(f"{route.sizes}: {name} slots beyond the {length} there are")
    if not queries or not keys:  # there is nothing on it but padding
        padding = route.queries[..., :0]
        route = Route(padding, padding, 1, 1, 1)
    q, k = request.q_tokens, request.k_tokens
    steps = tuple(zip(request.steps, scoring.firsts(request), strict=True))
    return Routed(route, request.pattern, q, k, request.scale, request.groups, steps)


def _share(reached: Tensor, tokens: Tokens) -> float:
    there = tokens.positions.to(reached.device) != NOBODY
    there = there.expand(reached.shape[0], -1).unsqueeze(1).expand_as(reached)
    return float((reached & there).sum() / there.sum().clamp(min=1))


class RoutedMechanism(Mechanism):
    """Attention along a route that content chose: exact for the pairs that meet, and no others.

    To write one, define ``route`` and set ``pattern``, which pairs that meet must satisfy besides,
    and ``dropout``. ``promise`` says in words what its causality rests on.
    """

    pattern: Pattern

    @abstractmethod
    def route(
        self,
        query: Tensor,
        key: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> Route:
        """Which queries (B, H, L, E) and keys (B, Hk, S, E) meet."""

    @property
    def promise(self) -> str:
        """``causality``, and why."""
        return f"{self.causality}: under {self.pattern}"

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
        route = self.route(query, key, q_tokens=q_tokens, k_tokens=k_tokens)
        return routed_attention(
            query, key, value, route, self.pattern,
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
        """The weight of each pair that meets, (B, H, L, S), before dropout."""
        route = self.route(query, key, q_tokens=q_tokens, k_tokens=k_tokens)
        return routed_attention_weights(
            query, key, route, self.pattern, q_tokens=q_tokens, k_tokens=k_tokens
        )

    def explain(
        self,
        query: Tensor,
        key: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> dict[str, str]:
        """In words: what is promised, what is computed, and which share of tokens is reached."""
        tokens = {"q_tokens": q_tokens, "k_tokens": k_tokens}
        route = self.route(query, key, **tokens)
        return told(self.promise, route, query, key, self.pattern, **tokens)

    def path(self, length: int) -> int | Pattern:
        """Raises NotSupported."""
        raise NotSupported(
            f"{type(self).__name__} chooses pairs by content: how far that reaches is not known "
            "before"
        )


# What a mechanism that routes by content can tell of one call: causality, work and coverage.


def told(
    causality: str,
    route: Route,
    query: Tensor,
    key: Tensor,
    pattern: Pattern,
    *,
    q_tokens: Tokens | None,
    k_tokens: Tokens | None,
) -> dict[str, str]:
    """In words. causality: what is promised, and why no more. Queries (B, H, L, E)."""
    found = coverage(query, key, route, pattern, q_tokens=q_tokens, k_tokens=k_tokens)
    lanes = f" in {route.lanes} orders" if route.lanes > 1 else ""
    blocks = f"{route.blocks:,} of {route.rows:,} × {route.columns:,}{lanes}"
    whole = query.shape[:3].numel() * key.shape[2]
    return in_words(causality, blocks, route.pairs if whole else 0, whole, found)


def in_words(
    causality: str, blocks: str, pairs: int, whole: int, reached: Coverage
) -> dict[str, str]:
    """What is told of any such call. pairs: how many of ``whole`` are computed."""
    return {
        "causality": causality,
        "blocks": blocks,
        "pairs computed": f"{pairs:,} of {whole:,}, {pairs / max(whole, 1):.1%}",
        "queries that look at somebody": f"{reached.queries:.1%}",
        "keys that are looked at": f"{reached.keys:.1%}",
    }


# A route from a choice of blocks.


def route_of_blocks(
    choice: Tensor, key_blocks: PositionBlocks, *, query_blocks: PositionBlocks | None = None
) -> Route:
    """The route on which queries attend to whole blocks of keys: m_ij = 1 where the block of j is
    among those chosen for i, else 0.

    choice: int64 (B, H, L, k), for each query and query head the numbers of blocks of
    ``key_blocks``, in any order, -1 for none; with ``query_blocks`` (B, H, N, k), for each of its N
    blocks of queries. A number that is named twice counts once; a block's own may be among them.

    What may attend to what within the blocks, say only earlier keys, the pattern says that
    ``routed_attention`` is given with the route. Padding is on no route. Work and memory are those
    of the pairs, L · k · size, and of the numbers of their keys: for queries alone as many, for
    blocks of queries a block's size less.

    Raises InvalidArgument for another dtype or shape, and for numbers of blocks that are not there.
    """
    count, size = key_blocks.count, key_blocks.size
    if choice.dtype != torch.int64 or choice.dim() != 4:
        raise InvalidArgument(
            f"choice is {choice.dtype} {tuple(choice.shape)}: int64 (batch, heads, queries, k)"
        )
    if choice.numel() and not -1 <= int(choice.min()) <= int(choice.max()) < count:
        least, most = int(choice.min()), int(choice.max())
        raise InvalidArgument(f"choice from {least} to {most}: there are blocks 0 to {count - 1}")
    if query_blocks is not None and query_blocks.count != choice.shape[2]:
        raise InvalidArgument(
            f"choice {tuple(choice.shape)} for {query_blocks.count} blocks of queries"
        )
    batch, heads, rows, _ = choice.shape
    chosen = functional.pad(choice, (0, 1), value=NOBODY).sort(-1, descending=True).values
    again = functional.pad(chosen[..., 1:] == chosen[..., :-1], (1, 0))
    chosen = chosen.masked_fill(again | (chosen == NOBODY), count)[..., : max(choice.shape[3], 1)]
    # One more block, which is all padding, for those that are not chosen.
    slots = functional.pad(key_blocks.slots.to(choice.device), (0, 0, 0, 1), value=NOBODY)
    row = torch.arange(batch, device=choice.device)[:, None, None, None]
    keys = slots.expand(batch, -1, -1)[row, chosen].reshape(batch, heads, 1, -1)
    if query_blocks is None:
        queries, of_block = torch.arange(rows, device=choice.device), 1
    else:
        queries, of_block = query_blocks.slots.to(choice.device).flatten(1), query_blocks.size
        queries = queries[:, None, None]
    columns = chosen.shape[3] * size
    return Route(queries.expand(batch, heads, 1, -1), keys, of_block, columns, columns)
