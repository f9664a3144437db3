"""Which storage a pattern needs, and which of its slots."""

from __future__ import annotations

import torch

from eyeline.caches.base import Cache
from eyeline.caches.buffers import Layout
from eyeline.caches.evicting import Evicting
from eyeline.caches.growing import Growing
from eyeline.errors import NotSupported
from eyeline.patterns import EMPTY, Bounds, Pattern
from eyeline.patterns.base import UNBOUNDED
from eyeline.tokens import Tokens

# Eviction is sought among texts of this length; a wider window never evicts before it.
_FAR = 1 << 20
_RANGE = 256


def cache_for(
    pattern: Pattern,
    *,
    layers: int,
    batch: int,
    num_kv_heads: int,
    head_dim: int,
    value_dim: int | None = None,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> Cache:
    """A cache for the layers that share one pattern.

    Evicting if the number of keys that can still be looked at stays bounded as the text grows,
    else Growing. value_dim is head_dim if not given.

    Raises NotSupported for a pattern that varies by length: keys are chosen before the length of
    the text is known.
    """
    width = value_dim if value_dim is not None else head_dim
    where = torch.device(device)
    return cache_in(pattern, Layout(layers, batch, num_kv_heads, head_dim, width, dtype, where))


def cache_in(pattern: Pattern, layout: Layout) -> Cache:
    """``cache_for`` where the shape of what is stored is a value."""
    if "length" in pattern.varies_by:
        raise NotSupported(
            f"{pattern} differs per length of sequence, and a cache fills before the length is "
            "known: fix it with pattern.of_length(n), where n is the longest text to be read"
        )
    slots = needed_slots(pattern)
    return Growing(pattern, layout) if slots is None else Evicting(pattern, layout, slots=slots)


def needed_slots(pattern: Pattern) -> int | None:
    """How many slots writing needs, the new token included; None if that grows with the text.

    Asked far out in the text, first of ranges of keys and then of the keys in those ranges that
    may be needed, so the work does not grow with the length that is looked at.
    """
    near, far = _ranges(pattern, _FAR), _ranges(pattern, 2 * _FAR)
    if len(far) > len(near) + 1:
        return None
    keys = (far[:, None] * _RANGE + torch.arange(_RANGE)).flatten()
    return int(pattern.needed(Tokens(keys[keys < 2 * _FAR]), 2 * _FAR).sum()) + 1


def _ranges(pattern: Pattern, position: int) -> torch.Tensor:
    """The ranges of keys before a position of which some may be needed from it on."""
    start = torch.arange(0, position, _RANGE)
    future, zero = torch.tensor([position]), torch.tensor([0])
    top = torch.full_like(future, UNBOUNDED)
    queries = Bounds(future, top, zero, top, zero, top)
    keys = Bounds(start, start + _RANGE - 1, zero, zero, zero, zero)
    return (pattern.verdict(queries, keys) != EMPTY).nonzero()[:, 0]
