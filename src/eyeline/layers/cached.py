"""The caches of several layers: one for all that share a pattern and the shape of their keys."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import final

import torch
from torch import Tensor

from eyeline.caches import Cache
from eyeline.errors import InvalidArgument
from eyeline.layers.attention import MultiHeadAttention
from eyeline.layers.in_steps import LayerCache, cache_kind
from eyeline.layers.in_steps import attend as attend
from eyeline.layers.in_steps import cache_of as cache_of
from eyeline.tokens import Tokens, default_tokens

Kind = tuple[Hashable, int, int]
"""What a mechanism keeps, such as its pattern's keys; the number of key heads, and their width."""


@final
class Caches:
    """Which of several caches each attention layer writes to, and at which number."""

    def __init__(self, layers: Sequence[MultiHeadAttention]) -> None:
        self._layers = list(layers)

    def new(self, batch: int) -> list[Cache]:
        """An empty cache for each kind of layer, in the order in which they come."""
        weight, kinds = self._layers[0].k_proj.weight, self._kinds()
        return [
            cache_of(
                self._layers[kinds.index(kind)].mechanism,
                layers=kinds.count(kind),
                batch=batch,
                num_kv_heads=kind[1],
                head_dim=kind[2],
                dtype=weight.dtype,
                device=weight.device,
            )
            for kind in dict.fromkeys(kinds)
        ]

    def advance(
        self, caches: Sequence[Cache], length: int, tokens: Tokens | None
    ) -> tuple[Tokens, list[LayerCache]]:
        """Takes a step's tokens into all caches; returns them, and where each layer writes.

        tokens: the positions that follow if not given. Raises InvalidArgument for another number
        of caches than ``new`` makes.
        """
        kinds = self._kinds()
        order = list(dict.fromkeys(kinds))
        if len(caches) != len(order):
            raise InvalidArgument(
                f"{len(caches)} caches for {len(order)} kinds of layers: use new_caches()"
            )
        tokens = tokens if tokens is not None else following(caches[0].position, length)
        for cache in caches:
            cache.advance(tokens)
        groups = [order.index(kind) for kind in kinds]
        places = [LayerCache(caches[g], groups[:i].count(g)) for i, g in enumerate(groups)]
        return tokens, places

    def _kinds(self) -> list[Kind]:
        return [
            (cache_kind(layer.mechanism), layer.num_kv_heads, layer.head_dim)
            for layer in self._layers
        ]


def following(position: int | Tensor, count: int) -> Tokens:
    """Slots that stand at position, position + 1, …"""
    if isinstance(position, Tensor):
        return Tokens(position + torch.arange(count))
    # From the start, the very tokens that attention assumes, so that plans are shared.
    if position == 0:
        return default_tokens(count, count)[0]
    return Tokens.arange(position, position + count)
