"""Linear attention: the product of queries and keys is never made, but that of keys and values."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from typing import final

import torch
from torch import Tensor, nn

from eyeline.caches import Cache, LayerCache, Layout, State
from eyeline.checks import check_size, wide_dtype
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.exact.call import Call, PatternLike, as_pattern, check_call
from eyeline.kernels.request import mask_of
from eyeline.mechanisms.base import Causality, Heads, Mechanism, register
from eyeline.mechanisms.linear.chunks import Marks, dense_weights
from eyeline.mechanisms.linear.features import Elu, Favor, FeatureMap, Relu
from eyeline.mechanisms.linear.fold import folded
from eyeline.mechanisms.linear.in_order import in_order
from eyeline.mechanisms.linear.scan import CHUNK, Scan, causal_scan, scanned, stepped
from eyeline.mechanisms.linear.sums import Sums, no_sums
from eyeline.memory import remembered
from eyeline.patterns import Causal, Full, Pattern
from eyeline.planning.cost import Asked, Work
from eyeline.tokens import NOBODY, Tokens, default_tokens
from eyeline.tokens.ordering import real_slots

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
    pattern, chosen = Causal() if causal else Full(), as_feature_map(feature_map)
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
    pattern, chosen = Causal() if causal else Full(), as_feature_map(feature_map)
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
    """A call that was checked, whose pattern is Full or Causal."""
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
    causal = isinstance(call.pattern, Causal)
    if not causal and k.documents is None:
        there = real_slots(k, query.device) if known is not None else None
        out = folded(query, key, value, feature_map, there)
    else:
        out = _scanned(query, key, value, feature_map, q, k, causal=causal)
    asking = real_slots(q, out.device) if known is not None else None
    return out if asking is None else out.masked_fill(~asking[:, None, :, None], 0.0)


def _scanned(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    feature_map: FeatureMap,
    q: Tokens,
    k: Tokens,
    *,
    causal: bool,
) -> Tensor:
    order = in_order(q, k, causal=causal)
    scan = Scan(feature_map, order.marks.to(query.device))
    if order.query is None or order.key is None or order.place is None:
        return causal_scan(query, key, value, scan)
    if not order.query.shape[1] or not query.shape[2] or not key.shape[2]:
        nothing = query[..., :0].sum() + key[..., :0].sum() + value[..., :0].sum()
        return nothing.expand(*query.shape[:3], value.shape[3])
    query = _taken(query, order.query)
    key, value = _taken(key, order.key), _taken(value, order.key)
    return _taken(causal_scan(query, key, value, scan), order.place)


def check_pattern(pattern: Pattern) -> None:
    """Raise NotSupported for patterns that linear attention cannot follow."""
    if pattern not in (Full(), Causal()):
        raise NotSupported(
            f"linear attention sums up all keys before a query: it follows full or causal, "
            f"not {pattern}"
        )


def _taken(x: Tensor, slots: Tensor) -> Tensor:
    """The rows of x (B, H, n, ·) in these slots (B or 1, m)."""
    slots = slots.to(x.device)
    if len(slots) == 1:
        return x.index_select(2, slots[0])
    index = slots[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3])
    return x.gather(2, index)


@remembered(4)
def _untraced() -> Callable[[Call, FeatureMap], Tensor]:
    """``_run``, kept from torch.compile, which would trace every piece."""
    run: Callable[[Call, FeatureMap], Tensor] = torch.compiler.disable(_run)
    return run


# Linear attention as a module for a layer; it decodes with a state of fixed size.


@register("linear")
@final
class LinearAttention(Mechanism):
    """out_i = φ(q_i)ᵀ Σ_j φ(k_j) v_jᵀ / φ(q_i)ᵀ Σ_j φ(k_j), over the j that i may look at.

    feature_map: φ: "elu" (elu(x) + 1), "relu", "favor" (positive random features), or a
    FeatureMap. features, seed: of "favor" only; features as in ``Favor`` if not given.
    pattern: full or causal; others are refused (NotSupported). Documents that tokens name are
    apart.

    causality: "functional" under a causal pattern, where no past output depends on the future,
    not even its last bit; else "none". A causal one decodes with a ``State``: F · (Ev + 1) numbers
    a head, whatever the position. Others must read the whole text at once (NotSupported).

    Time is linear in length; see ``linear_attention``. Raises InvalidArgument for sizes below 1,
    and for features that "favor" is not there to have. Katharopoulos et al. 2020; Choromanski et
    al. 2021.
    """

    pattern: Pattern

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        feature_map: FeatureMapLike = "elu",
        pattern: PatternLike = Full(),
        features: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_size("linear num_heads", num_heads)
        check_size("linear head_dim", head_dim)
        self.num_heads, self.head_dim = num_heads, head_dim
        self.pattern = as_pattern(pattern)
        check_pattern(self.pattern)
        if feature_map == "favor":
            feature_map = Favor(head_dim, features, seed=seed)
        elif features is not None:
            raise InvalidArgument(f'features={features}: only feature_map="favor" draws features')
        self.feature_map: FeatureMap = as_feature_map(feature_map)
        self.features = self.feature_map.count(head_dim)

    @property
    def causality(self) -> Causality:
        """ "functional" or "none"."""
        return "functional" if isinstance(self.pattern, Causal) else "none"

    @property
    def no_cache(self) -> str | None:
        """Why it cannot read in steps, if it cannot."""
        if self.causality == "functional":
            return None
        return f"under {self.pattern} tokens look ahead: read the whole text at once"

    @property
    def cache_kind(self) -> Hashable:
        """Layers in which this is equal, and whose heads are, can share a cache."""
        return self.pattern, self.features, self.feature_map.logarithmic

    def check_heads(self, heads: Heads) -> None:
        """Raise InvalidArgument if it was made for other heads."""
        self._check_made(heads, num_heads=self.num_heads, head_dim=self.head_dim)

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
        call = check_call(
            query, key, value, self.pattern, scale=1.0, q_tokens=q_tokens, k_tokens=k_tokens
        )
        self._check_width(query)
        return by_pattern(call, self.feature_map)

    def weights(
        self,
        query: Tensor,
        key: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> Tensor:
        """The weight of each pair, (B, H, L, S), for short inputs."""
        call = check_call(
            query, key, key, self.pattern, scale=1.0, q_tokens=q_tokens, k_tokens=k_tokens
        )
        self._check_width(query)
        return weights_by_pattern(call, self.feature_map)

    def new_cache(self, layout: Layout) -> Cache:
        """An empty state for the layers; its sums are float32, or float64 for float64."""
        self.check_steps()
        batch, num_kv_heads, head_dim = layout.batch, layout.num_kv_heads, layout.head_dim
        dtype, device = layout.dtype, layout.device
        with torch.inference_mode(False):
            like = torch.empty(0, dtype=wide_dtype(dtype), device=device)
            sums = no_sums(
                (batch, num_kv_heads, self.features), head_dim,
                like=like, logarithmic=self.feature_map.logarithmic,
            )  # fmt: skip
        return State(self.pattern, layout, _flat(sums))

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
        """A step's queries, keys and values (B, ·, m, E) to (B, H, m, E), and the state goes on.

        Raises InvalidArgument for a cache that ``new_cache`` did not make.
        """
        cache, layer = place
        if not isinstance(cache, State):
            raise InvalidArgument(f"linear attention keeps a State, not a {type(cache).__name__}")
        sums, heads = _sums(cache.kept(layer, key, value)), (query, key, value)
        marks, carried = _standing(q_tokens, cache.continues)
        scan = Scan(self.feature_map, marks.to(query.device))
        with torch.autocast(query.device.type, enabled=False):
            if query.shape[2] == 1 and marks.segments is None and marks.somebody is None:
                out, sums = stepped(heads, sums, scan)
            else:
                carried = None if carried is None else carried.to(query.device)
                out, sums = scanned(heads, sums, scan, carried=carried)
        cache.keep(layer, _flat(sums))
        if marks.somebody is None:
            return out
        return out.masked_fill(~scan.marks.somebody[:, None, :, None], 0.0)  # type: ignore[index]

    def work(self, asked: Asked) -> Work:
        """F · Ev for each key that is summed up and for each query that reads: 2·F·Ev·n.

        Random features take F · E more for each query and key. Causal, keys are read in chunks of
        64, one after another, whose pairs are multiplied; computed besides is a column of ones,
        for the normaliser. See ``eyeline.cost``.
        """
        call = asked.known("linear", heads=self.num_heads, head_dim=self.head_dim).call
        causal, f, ones = self.causality == "functional", self.features, call.value_dim + 1
        asking, keys = call.heads * call.length, call.kv_heads * call.key_length
        drawn = f * self.head_dim if isinstance(self.feature_map, Favor) else 0
        # Where there are fewer queries, they and the keys are put into one row, as two slots.
        slots = call.length + (call.key_length if call.length != call.key_length else 0)
        whole, rest = divmod(slots, CHUNK)
        near = call.heads * (whole * CHUNK**2 + rest**2) if causal else 0
        rows = (call.heads + call.kv_heads) * slots if causal else asking + keys
        return Work(
            call, pairs=0, computed=near,
            multiplications=(asking + keys) * (f * call.value_dim + drawn),
            computed_multiplications=rows * (f * ones + drawn) + near * (f + ones),
            numbers=call.numbers,
            steps=max(whole + (rest > 0), 1) if causal else 1,
        )  # fmt: skip

    def _check_width(self, query: Tensor) -> None:
        if query.shape[3] != self.head_dim:
            raise InvalidArgument(
                f"linear for heads of {self.head_dim}, these are {query.shape[3]}"
            )

    def extra_repr(self) -> str:
        parts = [f"num_heads={self.num_heads}", f"head_dim={self.head_dim}"]
        if not isinstance(self.feature_map, nn.Module):
            parts.append(f"feature_map={self.feature_map}")
        return ", ".join([*parts, str(self.pattern)])


def _standing(tokens: Tokens, continues: Tensor | None) -> tuple[Marks, Tensor | None]:
    """Where a step's tokens stand, and the document of the sums before it, by its number there."""
    host = tokens.host.positions
    if continues is None and host.shape[-1] == 1 and not bool((host == NOBODY).any()):
        return Marks(), None
    order = in_order(tokens, tokens, causal=True)
    if order.query is not None:
        raise NotSupported(
            "in steps, documents come one after another, and positions go up in each"
        )
    if continues is None or (order.marks.segments is None and bool(continues.all())):
        return order.marks, None
    segments = order.marks.segments
    segments = torch.zeros_like(torch.atleast_2d(host)) if segments is None else segments
    # The first document of a step is its number 0.
    return Marks(segments, order.marks.somebody), continues.long() - 1


def _flat(sums: Sums) -> tuple[Tensor, ...]:
    return (sums.total,) if sums.peak is None else (sums.total, sums.peak)


def _sums(kept: tuple[Tensor, ...]) -> Sums:
    return Sums(kept[0], kept[1] if len(kept) > 1 else None)
