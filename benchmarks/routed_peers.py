"""The packages that route by content, set up as they set themselves up, on (1, H, n, E)."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import Tensor

Call = Callable[..., Tensor]


def reformer(bucket: int, rounds: int) -> Call:
    """reformer-pytorch's LSHAttention, causal: shared queries and keys, and values."""
    package: Any = import_module("reformer_pytorch")
    attend = package.LSHAttention(bucket_size=bucket, n_hashes=rounds, causal=True)

    def call(shared: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out: Tensor = attend(shared.flatten(0, 1), value.flatten(0, 1))[0]
        return out.view_as(value)

    return call


def routing_transformer(clusters: int, window: int, heads: int, width: int) -> Call:
    """routing-transformer's KmeansAttention, causal, while training: its means move too."""
    package: Any = import_module("routing_transformer.routing_transformer")
    attend = package.KmeansAttention(clusters, window, heads, width, causal=True)

    def call(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out: Tensor = attend(query, key, value)[0]
        return out

    return call


def sinkhorn_transformer(block: int, heads: int, width: int, longest: int) -> Call:
    """The causal attention of sinkhorn-transformer's layer: own block and the best one before."""
    package: Any = import_module("sinkhorn_transformer.sinkhorn_transformer")
    layer = package.SinkhornSelfAttention(heads * width, block, longest, heads=heads, causal=True)
    attend: Call = layer.sinkhorn_attention
    return attend
