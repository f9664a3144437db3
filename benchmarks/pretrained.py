"""What the groups that run the real model share: the model itself, and the bytes of a step."""

from __future__ import annotations

import torch
from torch import nn

from eyeline.layers import PackedLinear
from eyeline.loading import Loaded, load
from eyeline.models import LlamaConfig
from eyeline.patterns import Pattern

from .harness import say
from .settings import MODEL


def ours(dtype: str, pattern: Pattern | None = None) -> Loaded:
    """The demo's model as users get it."""
    say(f"loading {MODEL} in {dtype}")
    return load(MODEL, pattern=pattern, dtype=getattr(torch, dtype))


def linear_bytes(model: nn.Module) -> int:
    """Bytes of all weights that one token is multiplied with (the embedding is only looked up)."""
    layers = [m for m in model.modules() if isinstance(m, (PackedLinear, nn.Linear))]
    return sum(layer.weight.numel() * layer.weight.element_size() for layer in layers)


def cache_bytes(config: LlamaConfig, positions: float, dtype: str) -> float:
    """Bytes of the keys and values of so many positions."""
    size: int = getattr(torch, dtype).itemsize
    return 2.0 * positions * config.layers * config.kv_heads * config.head_dim * size


def reading_flops(config: LlamaConfig, tokens: int, seen: int) -> float:
    """Operations to read a text: products of every layer, one head, 4 · width for each pair."""
    width, both = config.width, (config.heads + 2 * config.kv_heads) * config.head_dim
    layer = width * both + config.heads * config.head_dim * width + 3 * width * config.hidden
    products = 2.0 * (config.layers * layer * tokens + width * config.vocabulary)
    return products + 4.0 * config.layers * config.heads * config.head_dim * seen
