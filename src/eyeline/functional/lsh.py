"""LSH attention: tokens whose keys fall into one bucket look at each other."""

from __future__ import annotations

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument
from eyeline.exact.call import Call, PatternLike, check_call
from eyeline.functional.equal import equal
from eyeline.functional.routed import routed_attention_with_lse
from eyeline.functional.unit import unit
from eyeline.kernels.autograd import eager
from eyeline.patterns import Full
from eyeline.patterns.ahead import never_looks_ahead
from eyeline.routing import Route
from eyeline.routing.lsh import By, Hashing
from eyeline.tokens import NOBODY, Tokens


def lsh_attention(
    query_key: Tensor,
    value: Tensor,
    *,
    bucket_size: int = 64,
    rounds: int = 4,
    buckets: int | None = None,
    pattern: PatternLike = Full(),
    by: By = "chunks",
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
    pairs = [(q.positions, k.positions), (q.documents, k.documents)]
    return all(
        torch.equal(*torch.broadcast_tensors(x, y))
        for x, y in pairs if x is not None and y is not None
    )  # fmt: skip
