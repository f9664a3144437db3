"""LSH attention: tokens whose keys fall into one bucket look at each other."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from eyeline.caches import Cache, LayerCache, Layout, Mark, Marked
from eyeline.checks import equal, probability
from eyeline.errors import InvalidArgument
from eyeline.exact.call import Call, PatternLike, as_pattern, check_call
from eyeline.kernels.autograd import eager
from eyeline.kernels.route import Route
from eyeline.mechanisms.base import Causality, Heads, Mechanism, register
from eyeline.mechanisms.routed.attend import RoutedMechanism, routed_attention_with_lse
from eyeline.mechanisms.routed.buckets import By, Hashing
from eyeline.mechanisms.routed.clusters import unit
from eyeline.patterns import Full
from eyeline.patterns.ahead import never_looks_ahead, reads_in_steps
from eyeline.planning.cost import Asked, Work
from eyeline.tokens import NOBODY, Tokens


def lsh_attention(
    query_key: Tensor,
    value: Tensor,
    *,
    bucket_size: int = Hashing.bucket_size,
    rounds: int = Hashing.rounds,
    buckets: int | None = None,
    pattern: PatternLike = Full(),
    by: By = Hashing.by,
    seed: int = 0,
    scale: float | None = None,
    dropout_p: float = 0.0,
    tokens: Tokens | None = None,
) -> Tensor:
    """out[i] = Σ_j m_ij exp(s_ij) v_j / Σ_j m_ij exp(s_ij),  s_ij = scale · q_i · q_j/|q_j|, j ≠ i.

    m_ij is in how many of the rounds i and j meet, if the pattern allows the pair, else 0: rounds
    are weighted by their log-sum-exp. Whoever meets nobody in any round gets his own value v_i;
    nobody's slot gets 0.

    query_key: (B, H, L, E), the queries, and the keys when divided by their length. value:
    (B, H, L, Ev). One floating dtype and device. Returns (B, H, L, Ev). scale: 1/√E if not given.
    The paper's released code gives keys the length √E, which is scale=1.0. bucket_size, rounds,
    buckets, by, seed: see ``LSH``. tokens: what stands in each slot; documents are hashed and
    sorted each on its own and kept apart.

    Hashing has no gradient; the attention has first derivatives. Time is L·√(L / bucket_size) for
    hashing by chunks, else linear but for sorting; memory is linear. Kitaev et al. 2020
    (Reformer). Raises InvalidArgument for sizes below 1 and an odd number of buckets.
    """
    hashing = Hashing(bucket_size, rounds, by, buckets, seed)
    call = check_call(
        query_key, query_key, value, pattern,
        scale=scale, q_tokens=tokens, k_tokens=tokens, dropout_p=dropout_p,
    )  # fmt: skip
    return by_hashing(call, hashing)


def by_hashing(call: Call, hashing: Hashing, bucket: Tensor | None = None) -> Tensor:
    """The call along the route that hashing finds; its last keys are its queries.

    bucket: that of each key, where it is known.
    """
    return eager(lambda: _by_hashing(call, hashing, bucket))


def route_of(call: Call, hashing: Hashing) -> Route:
    """Who meets whom in each round: blocks of the sorted tokens, or lists of the last ones."""
    return eager(lambda: _route(call, hashing, None))


def _by_hashing(call: Call, hashing: Hashing, bucket: Tensor | None) -> Tensor:
    q_tokens, k_tokens = call.tokens if call.tokens is not None else (None, None)
    route = _route(call, hashing, bucket)
    out, lse = routed_attention_with_lse(
        call.query, unit(call.key), call.value, route, call.pattern,
        scale=call.scale, dropout_p=call.dropout_p, q_tokens=q_tokens, k_tokens=k_tokens,
    )  # fmt: skip
    alone = lse == -torch.inf
    if q_tokens is not None:
        there = torch.atleast_2d(q_tokens.positions.to(lse.device)) != NOBODY
        alone = alone & there[:, None]
    own = call.value[:, :, call.key.shape[2] - call.query.shape[2] :]
    return torch.where(alone.unsqueeze(3), own, out)


def _route(call: Call, hashing: Hashing, bucket: Tensor | None) -> Route:
    _check_shared(call)
    tokens, ahead = call.standing[1], not never_looks_ahead(call.pattern)
    bucket = bucket if bucket is not None else hashing.buckets_of(call.key, tokens)
    return hashing.route(bucket, call.query.shape[2], tokens, ahead=ahead)


def check_heads(num_heads: int, num_kv_heads: int) -> None:
    """Raise InvalidArgument for heads that share keys: a query is its own key."""
    if num_heads != num_kv_heads:
        raise InvalidArgument(
            f"lsh with {num_heads} query heads and {num_kv_heads} key heads: a query is its own "
            "key, so there are as many of both (num_kv_heads=num_heads)"
        )


def _check_shared(call: Call) -> None:
    """Raise InvalidArgument unless the last keys of the call are its queries."""
    query, key = call.query, call.key
    check_heads(query.shape[1], key.shape[1])
    start = key.shape[2] - query.shape[2]
    if start < 0 or not equal(query, key[:, :, start:]) or not _stand_alike(call):
        raise InvalidArgument(
            f"lsh has shared queries and keys: pass the query as the key; here {query.shape[2]} "
            f"queries are not the last of {key.shape[2]} keys"
        )


def _stand_alike(call: Call) -> bool:
    if call.tokens is None or call.tokens[0] is call.tokens[1]:
        return True
    q, k = (x.host for x in (call.tokens[0], call.tokens[1].last(call.query.shape[2])))
    pairs = [
        (q.positions, k.positions), (q.documents, k.documents), (q.segments, k.segments),
    ]  # fmt: skip
    return all(
        torch.equal(*torch.broadcast_tensors(x, y))
        for x, y in pairs if x is not None and y is not None
    )  # fmt: skip


# LSH attention as a module for a layer, which then makes queries and keys by one projection.


@register("lsh")
@final
class LSH(RoutedMechanism):
    """softmax over the j ≠ i that fall into the bucket of i: hash(x) = argmax [xR; -xR].

    Queries are keys: s_ij = scale · q_i · q_j/|q_j|, scale 1/√E if not given (see
    ``lsh_attention``), and the layer has one projection for both. Each of the ``rounds`` hashes by
    rotations R of its own and sorts tokens by document, bucket and position. A pair that meets in
    m rounds counts m times. Whoever meets nobody gets his own value.

    by: "chunks": the sorted tokens are cut into chunks of ``bucket_size``, and each chunk looks at
    itself and at the one before, as in the paper; "buckets": a token looks at the ``bucket_size``
    tokens of its bucket before it and, unless the pattern never looks ahead, after it. buckets:
    how many, even; if not given, about n / bucket_size for a document of n tokens by chunks, and
    64 by buckets, whatever the length. Both are made of two even factors, so that hashing takes
    E·√buckets multiplications a token and not E·buckets / 2.

    pattern: what pairs that meet must be allowed besides; honoured exactly. seed: of the
    rotations, which are the same in every call, in training too, until ``redraw``. Documents are
    routed each on its own. dropout: of weights, while training.

    causality: by buckets "functional" under a pattern that never looks ahead: a token's bucket
    depends on nothing else, so the future moves past outputs by rounding at most. It decodes: a
    step hashes its own keys, and buckets of those before are kept. By chunks "edge": pairs respect
    the order, but where chunks end depends on later tokens, so there is no cache. Under other
    patterns "none".

    Raises InvalidArgument for sizes below 1, an odd number of buckets, other numbers of key heads
    than of heads, and keys that are not the queries. Kitaev et al. 2020 (Reformer).
    """

    shared_qk = True

    def __init__(
        self,
        bucket_size: int = Hashing.bucket_size,
        rounds: int = Hashing.rounds,
        *,
        pattern: PatternLike = Full(),
        by: By = Hashing.by,
        buckets: int | None = None,
        seed: int = 0,
        scale: float | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.hashing = Hashing(bucket_size, rounds, by, buckets, seed)
        self.pattern = as_pattern(pattern)
        self.scale = scale
        self.dropout = probability("dropout", dropout)

    @property
    def causality(self) -> Causality:
        """ "functional", "edge" or "none"."""
        if not never_looks_ahead(self.pattern):
            return "none"
        return "functional" if self.hashing.by == "buckets" else "edge"

    @property
    def no_cache(self) -> str | None:
        """Why a text cannot be read in steps; None where it can."""
        if self.causality == "edge":
            return 'where chunks end depends on later tokens: by="buckets" reads in steps'
        return reads_in_steps(self.pattern)

    @property
    def cache_kind(self) -> Hashable:
        """Layers in which this is equal, and whose heads are, can share a cache."""
        return "lsh", self.hashing, self.pattern

    def redraw(self, seed: int | None = None) -> None:
        """Other rotations from now on: those of this seed, or of the next one.

        The seed is no weight, and is not saved with them.
        """
        self.hashing = replace(self.hashing, seed=self.hashing.seed + 1 if seed is None else seed)

    def check_heads(self, heads: Heads) -> None:
        """Raise InvalidArgument for heads that share keys: a query is its own key."""
        check_heads(heads.num_heads, heads.num_kv_heads)
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
        """(B, H, L, E), (B, H, S, E), (B, H, S, Ev) to (B, H, L, Ev); the last L keys are the
        queries."""
        return by_hashing(self._call(query, key, value, q_tokens, k_tokens), self.hashing)

    def step(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        place: LayerCache,
        q_tokens: Tokens,
        inputs: Tensor | None = None,
    ) -> Tensor:
        """A step's queries, keys and values (B, H, m, ·) to (B, H, m, Ev): its keys are hashed, and
        the buckets of all that came before are kept.

        Raises InvalidArgument for a cache that ``new_cache`` of other hashing made.
        """
        cache, layer = place
        if not isinstance(cache, Marked) or cache.maker != self.hashing:
            raise InvalidArgument(
                f"{self.hashing} has buckets of its own: this cache is of other keys, make one by "
                "new_cache()"
            )
        new = eager(lambda: self.hashing.buckets_of(key, q_tokens))
        key, value, k_tokens = cache.append(layer, key, value)
        bucket = cache.mark(layer, "bucket", new.mT).mT
        return by_hashing(self._call(query, key, value, q_tokens, k_tokens), self.hashing, bucket)

    def route(
        self,
        query: Tensor,
        key: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> Route:
        """Who meets whom in each round: lanes are rounds."""
        return route_of(self._call(query, key, key, q_tokens, k_tokens), self.hashing)

    def weights(
        self,
        query: Tensor,
        key: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> Tensor:
        """The weight of each pair over all rounds, (B, H, L, S), and 1 for one's own value where
        nobody is met."""
        return Mechanism.weights(self, query, key, q_tokens=q_tokens, k_tokens=k_tokens)

    @property
    def promise(self) -> str:
        """``causality``, and why."""
        return {
            "functional": "functional: a token's bucket depends on nothing else",
            "edge": "edge: pairs respect the order, but where chunks end depends on all tokens",
            "none": f"none: under {self.pattern} tokens may look ahead",
        }[self.causality]

    def new_cache(self, layout: Layout) -> Cache:
        """An empty cache that keeps every key, since who came before in a bucket counts, seen or
        not, and its bucket in each round."""
        self.check_steps()
        marks = {"bucket": Mark(self.hashing.rounds)}
        return Marked(self.pattern, layout, marks=marks, maker=self.hashing)

    def work(self, asked: Asked) -> Work:
        """E + Ev for each pair of places that may meet, in each round, and hashing before it.

        Who meets whom is found in the content, so pairs are the most that look under any pattern.
        Hashing a key takes E for each of √(n / bucket_size) columns about. See ``eyeline.cost``.
        """
        call = asked.call
        self.check_heads(Heads(call.heads, call.kv_heads, call.head_dim))
        hashing, n = self.hashing, call.key_length
        size = max(min(hashing.bucket_size, n), 1)
        sides = 1 if hashing.by == "chunks" or never_looks_ahead(self.pattern) else 2
        reach = 2 * size - 1 if hashing.by == "chunks" else sides * size
        lanes = call.heads * hashing.rounds
        pairs = lanes * call.length * min(reach, max(n - 1, 0))
        blocks, width = -(-n // size), (1 + sides) * size
        computed = lanes * blocks * size * width
        if hashing.by == "buckets" and call.length != n:
            computed = lanes * call.length * sides * size
        hashes = lanes * n * call.head_dim * hashing.columns(n)
        return Work(
            call, pairs, computed,
            pairs * call.products + hashes, computed * call.products + hashes,
            numbers=call.numbers, steps=3,
        )  # fmt: skip

    def _call(
        self, query: Tensor, key: Tensor, value: Tensor, q: Tokens | None, k: Tokens | None
    ) -> Call:
        return check_call(
            query, key, value, self.pattern,
            scale=self.scale, q_tokens=q, k_tokens=k,
            dropout_p=self.dropout if self.training else 0.0,
        )  # fmt: skip

    def extra_repr(self) -> str:
        h = self.hashing
        parts = [f"{h.bucket_size}, rounds={h.rounds}, by={h.by!r}", str(self.pattern)]
        parts += [f"buckets={h.buckets}"] if h.buckets is not None else []
        parts += [f"seed={h.seed}"] if h.seed else []
        parts += [f"scale={self.scale:g}"] if self.scale is not None else []
        return ", ".join(parts + ([f"dropout={self.dropout:g}"] if self.dropout else []))
