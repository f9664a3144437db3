"""Linear attention as a module for a layer; it decodes with a state of fixed size."""

from __future__ import annotations

from collections.abc import Hashable
from typing import final

import torch
from torch import Tensor, nn

from eyeline.caches import Cache, Layout, State
from eyeline.checks import check_size
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.exact.call import PatternLike, as_pattern, check_call
from eyeline.functional.in_order import in_order
from eyeline.functional.linear import (
    FeatureMapLike,
    as_feature_map,
    by_pattern,
    kinds,
    refusal,
    weights_by_pattern,
)
from eyeline.kernels.chunks import Marks
from eyeline.kernels.features import Favor, FeatureMap
from eyeline.kernels.scan import CHUNK, Scan, scanned, stepped
from eyeline.kernels.sums import Sums, no_sums
from eyeline.patterns import Full
from eyeline.planning.cost import Asked, Work
from eyeline.tokens import NOBODY, Tokens


@final
class LinearAttention(nn.Module):
    """out_i = φ(q_i)ᵀ Σ_j φ(k_j) v_jᵀ / φ(q_i)ᵀ Σ_j φ(k_j), over the j that i may look at.

    feature_map: φ: "elu" (elu(x) + 1), "relu", "favor" (positive random features), or a
    FeatureMap. features, seed: of "favor" only; features as in ``Favor`` if not given.
    pattern: full, causal, same_document, or & of them; others are refused (NotSupported). As in
    every pattern, documents are kept apart by same_document only.

    causality: "functional" under a causal pattern, where no past output depends on the future,
    not even its last bit; else "none". A causal one decodes with a ``State``: F · (Ev + 1) numbers
    a head, whatever the position. Others must read the whole text at once (NotSupported).

    Time is linear in length; see ``linear_attention``. Raises InvalidArgument for sizes below 1,
    and for features that "favor" is not there to have. Katharopoulos et al. 2020; Choromanski et
    al. 2021.
    """

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
        reason = refusal(self.pattern)
        if reason is not None:
            raise NotSupported(reason)
        if feature_map == "favor":
            feature_map = Favor(head_dim, features, seed=seed)
        elif features is not None:
            raise InvalidArgument(f'features={features}: only feature_map="favor" draws features')
        self.feature_map: FeatureMap = as_feature_map(feature_map)
        self.features = self.feature_map.count(head_dim)

    @property
    def causality(self) -> str:
        """ "functional" or "none"."""
        return "functional" if kinds(self.pattern)[0] else "none"

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

    def check(self, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        """Raise InvalidArgument if it was made for other heads."""
        if (self.num_heads, self.head_dim) != (num_heads, head_dim):
            raise InvalidArgument(
                f"linear for {self.num_heads} heads of {self.head_dim}; there are {num_heads} of "
                f"{head_dim}"
            )

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

    def new_cache(
        self,
        *,
        layers: int,
        batch: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> Cache:
        """An empty state for so many layers; its sums are float32, or float64 for float64."""
        if self.no_cache is not None:
            raise NotSupported(self.no_cache)
        device = torch.device(device)
        layout = Layout(layers, batch, num_kv_heads, head_dim, head_dim, dtype, device)
        with torch.inference_mode(False):
            like = torch.empty(0, dtype=torch.promote_types(dtype, torch.float32), device=device)
            sums = no_sums(
                (batch, num_kv_heads, self.features), head_dim,
                like=like, logarithmic=self.feature_map.logarithmic,
            )  # fmt: skip
        return State(self.pattern, layout, _flat(sums), apart=kinds(self.pattern)[1])

    def step(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        cache: Cache,
        layer: int,
        q_tokens: Tokens,
    ) -> Tensor:
        """A step's queries, keys and values (B, ·, m, E) to (B, H, m, E), and the state goes on.

        Raises InvalidArgument for a cache that ``new_cache`` did not make.
        """
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
    order = in_order(tokens, tokens, causal=True, apart=continues is not None)
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
