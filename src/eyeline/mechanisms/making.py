"""How each mechanism is made for a layer: its name, and the module for a pattern and heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import nn

from eyeline.errors import NotSupported
from eyeline.mechanisms.additive import Additive
from eyeline.mechanisms.clustered import ClusteredQueries
from eyeline.mechanisms.compressed import By, Compressed
from eyeline.mechanisms.exact import Exact
from eyeline.mechanisms.extra_keys import ExtraKeys
from eyeline.mechanisms.kmeans import KMeans
from eyeline.mechanisms.linear import LinearAttention
from eyeline.mechanisms.linformer import Linformer, Sharing
from eyeline.mechanisms.lsh import LSH
from eyeline.mechanisms.sinkhorn import Network, Sinkhorn
from eyeline.mechanisms.threshold import Threshold
from eyeline.mechanisms.topk import TopK
from eyeline.patterns import Pattern
from eyeline.routing.lsh import By as LSHBy


@dataclass(frozen=True)
class Heads:
    """What a mechanism works on: so many heads of queries, of keys, and their width."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


Make = Callable[..., nn.Module]
"""(pattern, heads, *, dropout, **options) to a module that is called as ``Exact`` is."""


def _exact(pattern: Pattern, heads: Heads, *, dropout: float) -> nn.Module:
    return Exact(pattern, dropout=dropout)


def _additive(
    pattern: Pattern, heads: Heads, *, dropout: float, hidden: int | None = None
) -> nn.Module:
    return Additive(
        heads.num_heads, heads.head_dim, hidden=hidden, pattern=pattern, dropout=dropout
    )


def _extra_keys(pattern: Pattern, heads: Heads, *, dropout: float, count: int) -> nn.Module:
    exact = Exact(pattern, dropout=dropout)
    return ExtraKeys(exact, count, num_kv_heads=heads.num_kv_heads, head_dim=heads.head_dim)


def _linformer(
    pattern: Pattern,
    heads: Heads,
    *,
    dropout: float,
    length: int,
    k: int,
    sharing: Sharing | None = "heads",
) -> nn.Module:
    return Linformer(
        length, k, num_kv_heads=heads.num_kv_heads, head_dim=heads.head_dim,
        sharing=sharing if sharing is not None else "none",  # the word none reads as None
        pattern=pattern, dropout=dropout,
    )  # fmt: skip


def _compressed(
    pattern: Pattern,
    heads: Heads,
    *,
    dropout: float,
    factor: int,
    by: By = "conv",
    local: bool = False,
    rounds: int = 5,
) -> nn.Module:
    return Compressed(
        factor, by=by, num_kv_heads=heads.num_kv_heads, head_dim=heads.head_dim,
        pattern=pattern, local=local, rounds=rounds, dropout=dropout,
    )  # fmt: skip


def _linear(
    pattern: Pattern,
    heads: Heads,
    *,
    dropout: float,
    feature_map: str = "elu",
    features: int | None = None,
    seed: int = 0,
) -> nn.Module:
    if dropout:
        raise NotSupported(f"dropout={dropout:g}: linear attention has no weights to leave out")
    return LinearAttention(
        heads.num_heads, heads.head_dim,
        feature_map=feature_map, pattern=pattern, features=features, seed=seed,
    )  # fmt: skip


def _topk(pattern: Pattern, heads: Heads, *, dropout: float, k: int) -> nn.Module:
    return TopK(k, pattern=pattern, dropout=dropout)


def _threshold(pattern: Pattern, heads: Heads, *, dropout: float, t: float) -> nn.Module:
    return Threshold(t, pattern=pattern, dropout=dropout)


def _lsh(
    pattern: Pattern,
    heads: Heads,
    *,
    dropout: float,
    bucket_size: int = 64,
    rounds: int = 4,
    by: LSHBy = "chunks",
    buckets: int | None = None,
    seed: int = 0,
) -> nn.Module:
    return LSH(
        bucket_size, rounds, pattern=pattern, by=by, buckets=buckets, seed=seed, dropout=dropout
    )


def _kmeans(
    pattern: Pattern,
    heads: Heads,
    *,
    dropout: float,
    clusters: int,
    window: int,
    decay: float = 0.999,
    commitment: float = 1e-4,
    seed: int = 0,
) -> nn.Module:
    return KMeans(
        clusters, window, num_heads=heads.num_heads, head_dim=heads.head_dim,
        pattern=pattern, decay=decay, commitment=commitment, seed=seed, dropout=dropout,
    )  # fmt: skip


def _clustered(
    pattern: Pattern,
    heads: Heads,
    *,
    dropout: float,
    clusters: int,
    topk: int,
    rounds: int = 10,
) -> nn.Module:
    return ClusteredQueries(clusters, topk, pattern=pattern, rounds=rounds, dropout=dropout)


def _sinkhorn(
    pattern: Pattern,
    heads: Heads,
    *,
    dropout: float,
    block: int,
    network: Network = "pairs",
    blocks: int | None = None,
    iterations: int = 8,
    temperature: float = 0.75,
    noise: float = 0.0,
) -> nn.Module:
    return Sinkhorn(
        block, num_kv_heads=heads.num_kv_heads, head_dim=heads.head_dim,
        network=network, blocks=blocks, iterations=iterations, temperature=temperature,
        noise=noise, pattern=pattern, dropout=dropout,
    )  # fmt: skip


TABLE: Mapping[str, Make] = {
    "exact": _exact,
    "additive": _additive,
    "extra_keys": _extra_keys,
    "topk": _topk,
    "threshold": _threshold,
    "lsh": _lsh,
    "kmeans": _kmeans,
    "clustered": _clustered,
    "sinkhorn": _sinkhorn,
    "linear": _linear,
    "linformer": _linformer,
    "compressed": _compressed,
}
"""Mechanisms by name."""
