"""One step of GPT-2 written out: every intermediate by name, from the embedding to the logits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from eyeline.caches import Cache
from eyeline.errors import NotSupported
from eyeline.layers.feedforward import ACTIVATIONS
from eyeline.mechanisms import Exact
from eyeline.models.gpt2 import GPT2, Block, merge
from eyeline.planning import dense_mask
from eyeline.tokens import Tokens


@torch.no_grad()
def trace(
    model: GPT2,
    ids: Tensor,
    *,
    q_tokens: Tokens | None = None,
    caches: Sequence[Cache] | None = None,
) -> dict[str, Tensor]:
    """All that GPT-2 makes of ids (B, L), in the order in which it is made.

        embedding, position, sum                          (B, L, width), position (L, width)
        layers.0.normed                                   (B, L, width)
        layers.0.query, .key, .value                      (B, H, L, E), keys and values (B, H, S, E)
        layers.0.scores = q kᵀ / √E, -∞ where not allowed (B, H, L, S)
        layers.0.weights = softmax(scores)                (B, H, L, S)
        layers.0.heads = weights v                        (B, H, L, E)
        layers.0.merged, .projected, .attention_sum       (B, L, width)
        layers.0.feed_forward_normed, .up, .activated     (B, L, width), (B, L, hidden)
        layers.0.down, .sum                               (B, L, width)
        layers.1.normed, …
        norm, logits                                      (B, L, width), (B, L, vocabulary)

    caches: from ``model.new_caches()``, which are advanced as by the model itself; keys and
    values are then those that were kept, and the new ones. Dropout is left out. Attention is the
    textbook's, so memory grows with L · S; the model's own gives the same.

    Raises NotSupported for a mechanism that is not exact attention.
    """
    _check(model)
    tokens, seen = model._advance(ids, q_tokens, caches)
    found = {"embedding": model.embedding(ids), "position": model.placed(tokens)}
    x = found["sum"] = found["embedding"] + found["position"]
    for number, (group, layer) in enumerate(zip(model.groups, model.layers, strict=True)):
        cache, k_tokens = seen[group]
        block = _Written(cast(Block, layer), tokens, k_tokens, cache)
        parts = {**block.attention(x), **block.feed_forward()}
        found |= {f"layers.{number}.{name}": part for name, part in parts.items()}
        x = parts["sum"]
    found["norm"] = model.norm(x)
    found["logits"] = model.head(found["norm"])
    return found


def _check(model: GPT2) -> None:
    for mechanism in model.mechanisms:
        if not isinstance(mechanism, Exact):
            raise NotSupported(
                f"a trace writes out exact attention, not {type(mechanism).__name__}"
            )


class _Written:
    """A block, step by step."""

    def __init__(self, block: Block, tokens: Tokens, k_tokens: Tokens, cache: Cache | None) -> None:
        self.block, self.exact, self.cache = block, cast(Exact, block.attention.mechanism), cache
        self.tokens, self.k_tokens = tokens, k_tokens
        self.residual = torch.empty(0)

    def attention(self, x: Tensor) -> dict[str, Tensor]:
        part = self.block.attention
        normed: Tensor = self.block.attention_norm(x)
        query, key, value = part.split(part.qkv(normed))
        if self.cache is not None:
            key, value, _ = self.cache.append(part.index, key, value)
            key, value = key.clone(), value.clone()  # the next step writes into the same place
        scores = self._scores(query, key)
        weights = scores.softmax(-1).nan_to_num(0.0)  # a query that may look at nobody
        heads = weights @ value
        merged = merge(heads)
        projected: Tensor = part.out(merged)
        self.residual = x + projected
        return {
            "normed": normed, "query": query, "key": key, "value": value, "scores": scores,
            "weights": weights, "heads": heads, "merged": merged, "projected": projected,
            "attention_sum": self.residual,
        }  # fmt: skip

    def _scores(self, query: Tensor, key: Tensor) -> Tensor:
        allowed = dense_mask(
            self.exact.pattern,
            q_tokens=self.tokens,
            k_tokens=self.k_tokens,
            batch=query.shape[0],
            heads=query.shape[1],
        )
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        return scores.masked_fill(~allowed.to(scores.device), -math.inf)

    def feed_forward(self) -> dict[str, Tensor]:
        part = self.block.feed_forward
        normed: Tensor = self.block.feed_forward_norm(self.residual)
        up: Tensor = part.up(normed)
        activated = ACTIVATIONS[part.activation](up)
        down: Tensor = part.down(activated)
        return {
            "feed_forward_normed": normed, "up": up, "activated": activated, "down": down,
            "sum": self.residual + down,
        }  # fmt: skip
