"""Linear attention: the product of queries and keys is never made, but that of keys and values."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument
from eyeline.exact.call import Call, check_call
from eyeline.functional.in_order import in_order, somebody
from eyeline.kernels.features import Elu, FeatureMap, Relu
from eyeline.kernels.fold import folded
from eyeline.kernels.linear_dense import dense_weights
from eyeline.kernels.request import mask_of
from eyeline.kernels.scan import Scan, causal_scan
from eyeline.patterns import And, Causal, Full, Pattern, SameDocument
from eyeline.tokens import Tokens, default_tokens

FeatureMapLike = FeatureMap | str
_BY_WORD: dict[str, Callable[[], FeatureMap]] = {"elu": Elu, "relu": Relu}


def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    feature_map: FeatureMapLike = "elu",
    causal: bool = False,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
) -> Tensor:
    """out[i] = φ(q_i)ᵀ Σ_j φ(k_j) v_jᵀ / φ(q_i)ᵀ Σ_j φ(k_j), over the j that i may look at.

    query: (B, H, L, E); key: (B, Hk, S, E); value: (B, Hk, S, Ev); H a multiple of Hk, query head
    h uses key head h // (H / Hk). One floating dtype and device. Returns (B, H, L, Ev).
    feature_map: "elu", "relu", or a FeatureMap: Elu(), Relu(eps), Favor(E, features), your own.
    There is no scale: Favor divides by E^¼ itself, the others take queries and keys as they are.
    causal: whether j may not stand after i.
    q_tokens, k_tokens: what stands in each slot; as in ``attention`` if not given. Nobody is never
    looked at. Where they name documents, these are kept apart.

    Keys and values are summed up before queries multiply them, (VKᵀ)Q in place of V(KᵀQ): 2·F·Ev
    multiplications a token in place of (E + Ev)·S. Memory is linear in length. Sums are kept in
    float32, or float64 for float64 inputs; those of Favor at any scale of queries and keys, and
    past outputs are the same to the last bit whatever the future holds. It is not softmax
    attention; with Favor it is an estimate of it.

    A query without keys, or with a normaliser of 0 (Relu(0)), gets exactly 0. First derivatives
    are linear in memory; second ones take L·S.

    Raises InvalidArgument for sizes, dtypes or tokens that do not fit together, and for a feature
    map made for other heads. Katharopoulos et al. 2020; Choromanski et al. 2021.
    """
    pattern, chosen = pattern_of(causal, k_tokens), as_feature_map(feature_map)
    call = _check(query, key, value, pattern, chosen, q_tokens, k_tokens)
    return by_pattern(call, chosen)


def linear_attention_weights(
    query: Tensor,
    key: Tensor,
    *,
    feature_map: FeatureMapLike = "elu",
    causal: bool = False,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
) -> Tensor:
    """weight[i, j] = φ(q_i)ᵀφ(k_j) / Σ_j φ(q_i)ᵀφ(k_j): (B, H, L, S), for short inputs.

    Exactly 0 where i may not look at j; each row sums to 1, or to 0 where there is nothing to look
    at. In the dtype of the query. Memory is L·S, and F times that for Favor.
    """
    pattern, chosen = pattern_of(causal, k_tokens), as_feature_map(feature_map)
    call = _check(query, key, key, pattern, chosen, q_tokens, k_tokens)
    return weights_by_pattern(call, chosen)


def as_feature_map(feature_map: FeatureMapLike) -> FeatureMap:
    """A FeatureMap as it is; "elu" and "relu" by their names."""
    if isinstance(feature_map, FeatureMap):
        return feature_map
    if isinstance(feature_map, str) and feature_map in _BY_WORD:
        return _BY_WORD[feature_map]()
    raise InvalidArgument(
        f'feature_map={feature_map!r}: "elu", "relu", or a FeatureMap, such as '
        "Favor(head_dim, features)"
    )


def pattern_of(causal: bool, k_tokens: Tokens | None) -> Pattern:
    """What the arguments say, as a pattern."""
    apart = k_tokens is not None and k_tokens.documents is not None
    rule: Pattern = Causal() if causal else Full()
    return rule & SameDocument() if apart else rule


def _check(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: Pattern,
    feature_map: FeatureMap,
    q_tokens: Tokens | None,
    k_tokens: Tokens | None,
) -> Call:
    call = check_call(query, key, value, pattern, scale=1.0, q_tokens=q_tokens, k_tokens=k_tokens)
    feature_map.count(query.shape[3])
    return call


def by_pattern(call: Call, feature_map: FeatureMap) -> Tensor:
    """A call that was checked, whose pattern is Full or Causal, and SameDocument."""
    run = _untraced() if "torch._dynamo" in sys.modules else _run
    with torch.autocast(call.query.device.type, enabled=False):
        return run(call, feature_map)


def weights_by_pattern(call: Call, feature_map: FeatureMap) -> Tensor:
    """The weights of a call that was checked."""
    with torch.autocast(call.query.device.type, enabled=False):
        mask = mask_of(call.request())
        return dense_weights(call.query, call.key, feature_map, mask).to(call.query.dtype)


def _run(call: Call, feature_map: FeatureMap) -> Tensor:
    query, key, value = call.query, call.key, call.value
    known = call.tokens
    q, k = known if known is not None else default_tokens(query.shape[2], key.shape[2])
    causal, apart = kinds(call.pattern)
    if not causal and (not apart or k.documents is None):
        there = somebody(k) if known is not None else None
        there = None if there is None else there.to(query.device)
        out = folded(query, key, value, feature_map, there)
    else:
        out = _scanned(query, key, value, feature_map, q, k, causal=causal, apart=apart)
    asking = somebody(q) if known is not None else None
    return out if asking is None else out.masked_fill(~asking[:, None, :, None].to(out.device), 0.0)


def _scanned(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    feature_map: FeatureMap,
    q: Tokens,
    k: Tokens,
    *,
    causal: bool,
    apart: bool,
) -> Tensor:
    order = in_order(q, k, causal=causal, apart=apart)
    scan = Scan(feature_map, order.marks.to(query.device))
    if order.query is None or order.key is None or order.place is None:
        return causal_scan(query, key, value, scan)
    if not query.shape[2] or not key.shape[2]:
        nothing = query[..., :0].sum() + key[..., :0].sum() + value[..., :0].sum()
        return nothing.expand(*query.shape[:3], value.shape[3])
    query = _taken(query, order.query)
    key, value = _taken(key, order.key), _taken(value, order.key)
    return _taken(causal_scan(query, key, value, scan), order.place)


def kinds(pattern: Pattern) -> tuple[bool, bool]:
    """(causal, apart) of Full, Causal, SameDocument, or an & of them. See ``refusal``."""
    parts = _parts(pattern)
    return Causal() in parts, SameDocument() in parts


def refusal(pattern: Pattern) -> str | None:
    """Why linear attention cannot follow a pattern, if it cannot."""
    if all(part in (Full(), Causal(), SameDocument()) for part in _parts(pattern)):
        return None
    return (
        f"linear attention sums up all keys before a query: it follows full, causal, "
        f"same_document and & of them, not {pattern}"
    )


def _parts(pattern: Pattern) -> list[Pattern]:
    if not isinstance(pattern, And):
        return [pattern]
    return [part for member in pattern.parts for part in _parts(member)]


def _taken(x: Tensor, slots: Tensor) -> Tensor:
    """The rows of x (B, H, n, ·) in these slots (B or 1, m)."""
    slots = slots.to(x.device)
    if len(slots) == 1:
        return x.index_select(2, slots[0])
    index = slots[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3])
    return x.gather(2, index)


@cache
def _untraced() -> Callable[[Call, FeatureMap], Tensor]:
    """``_run``, kept from torch.compile, which would trace every piece."""
    run: Callable[[Call, FeatureMap], Tensor] = torch.compiler.disable(_run)
    return run
