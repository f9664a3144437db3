"""How a mechanism reads a text in steps: what it keeps, and how it looks at what was kept."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from eyeline.caches import Cache, cache_for
from eyeline.errors import NotSupported
from eyeline.patterns import Pattern
from eyeline.tokens import Tokens


class LayerCache(NamedTuple):
    """A cache, and the number that a layer has in it.

    Whoever runs the layers calls ``cache.advance(tokens)`` once a step, before the first of them.
    """

    cache: Cache
    layer: int


def check_steps(mechanism: nn.Module) -> None:
    """Raise NotSupported for a mechanism that cannot read in steps, with its reason."""
    name, reason = type(mechanism).__name__, getattr(mechanism, "no_cache", None)
    if reason is not None:
        raise NotSupported(f"{name} does not read in steps: {reason}")
    pattern = getattr(mechanism, "pattern", None)
    if not hasattr(mechanism, "new_cache") and not isinstance(pattern, Pattern):
        raise NotSupported(
            f"{name} has no pattern that says which keys to keep: read the whole text at once"
        )


def cache_kind(mechanism: nn.Module) -> Hashable:
    """Layers in which this is equal can share a cache, if their heads are alike too."""
    kind: Hashable = getattr(mechanism, "cache_kind", None)
    if kind is not None:
        return kind
    pattern: Hashable = getattr(mechanism, "pattern", None)
    return pattern


def cache_of(
    mechanism: nn.Module,
    *,
    layers: int,
    batch: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Cache:
    """An empty cache for so many layers that look by this mechanism.

    A mechanism with ``new_cache`` keeps what it says itself; others keep the keys that their
    ``pattern`` may still look at. Raises NotSupported for one that has neither, or that gives a
    reason in ``no_cache``.
    """
    pattern = getattr(mechanism, "pattern", None)
    make = getattr(mechanism, "new_cache", None)
    check_steps(mechanism)
    shape = {
        "layers": layers, "batch": batch, "num_kv_heads": num_kv_heads, "head_dim": head_dim,
        "dtype": dtype, "device": device,
    }  # fmt: skip
    made: Cache = make(**shape) if make is not None else cache_for(pattern, **shape)  # type: ignore[arg-type]
    return made


def attend(
    mechanism: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    q_tokens: Tokens | None,
    k_tokens: Tokens | None,
    place: LayerCache | None,
) -> Tensor:
    """What a layer sees: (B, H, L, E) of a step's new keys and values, and of those kept.

    place: from ``cache_of``, advanced by q_tokens; None reads the whole text at once. k_tokens:
    what ``advance`` returned, or q_tokens. A mechanism with ``step`` writes to its cache itself.
    Under autocast, where projections give another type, the cache keeps its own.
    """
    if place is not None and torch.is_autocast_enabled(query.device.type):
        query, key, value = (x.to(place.cache.layout.dtype) for x in (query, key, value))
    step = getattr(mechanism, "step", None)
    if place is not None and step is not None:
        stepped: Tensor = step(
            query, key, value, cache=place.cache, layer=place.layer, q_tokens=q_tokens
        )
        return stepped
    if place is not None:
        key, value, k_tokens = place.cache.append(place.layer, key, value)
    seen: Tensor = mechanism(query, key, value, q_tokens=q_tokens, k_tokens=k_tokens)
    return seen
