"""Block top-k, a mechanism of one's own in one file; docs/own_mechanism.md goes through it.

``python examples/block_topk.py`` compares it with its dense definition. In this folder every verb
knows it: ``eyeline train lm … --mechanism "block_topk(block=8, k=2)" --import block_topk``.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import final

import torch
from torch import Tensor

from eyeline import Causal, Pattern, Tokens
from eyeline.caches import Cache, LayerCache, Layout, Marked, Pool
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.functional import (
    PositionBlocks,
    Route,
    position_blocks,
    route_of_blocks,
    routed_attention,
)
from eyeline.mechanisms import RoutedMechanism, register
from eyeline.testing import check_mechanism
from eyeline.tokens import default_tokens

CAUSAL = Causal()


@register("block_topk")
@final
class BlockTopK(RoutedMechanism):
    """out_i = Σ_j softmax_j(q_i·k_j/√E) v_j over the j ≤ i in the block of i and in the k blocks n
    before it, of the same document, with the greatest q_i·mean_n, the mean of block n's keys."""

    def __init__(
        self, block: int = 16, k: int = 2, *, pattern: Pattern = CAUSAL, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if block < 1 or k < 0:
            raise InvalidArgument(f"block_topk(block={block}, k={k}): from 1, and from 0")
        if pattern != CAUSAL:
            raise NotSupported(f"block_topk chooses among earlier blocks: causal, not {pattern}")
        self.block, self.k, self.pattern, self.dropout = block, k, pattern, dropout

    def route(
        self,
        query: Tensor,
        key: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> Route:
        """Which keys (B, Hk, S, E) the queries (B, H, L, E) attend to, if the pattern allows."""
        q, k = default_tokens(query.shape[2], key.shape[2])
        q, k = (q, k) if q_tokens is None or k_tokens is None else (q_tokens, k_tokens)
        blocks = position_blocks(k, self.block).to(query.device)
        return self.choose(query, blocks.pool(key), blocks, q)

    @torch.no_grad()
    def choose(self, query: Tensor, mean: Tensor, blocks: PositionBlocks, q: Tokens) -> Route:
        """The route to each query's own block and the best before it, by means (B, Hk, N, E)."""
        at = q.points(axis=-2, device=query.device)  # (L, 1), or (B, L, 1), against the N blocks
        same, number = at.document == blocks.documents[:, None], at.position // self.block
        own = same & (blocks.numbers[:, None] == number)
        before = same & (blocks.numbers[:, None] < number)
        score = query @ mean.repeat_interleave(query.shape[1] // mean.shape[1], 1).mT
        score = score.masked_fill(~before[:, None], -torch.inf).masked_fill(own[:, None], torch.inf)
        best = score.topk(min(self.k + 1, blocks.count))
        return route_of_blocks(best.indices.masked_fill(best.values == -torch.inf, -1), blocks)

    # While a text is written, the mean keys are kept: a step reads N of them, not all keys.

    @property
    def cache_kind(self) -> Hashable:
        """Layers in which this is equal share a cache."""
        return "block_topk", self.block

    def new_cache(self, layout: Layout) -> Cache:
        """Keys and values, and the mean key of each block."""
        return Marked(self.pattern, layout, pools={"mean": Pool(of="key")})

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
        """The new tokens' queries, keys and values, (B, ·, m, E), to (B, H, m, E)."""
        cache, layer = place
        assert isinstance(cache, Marked)
        key, value, k_tokens = cache.append(layer, key, value)
        blocks = position_blocks(k_tokens, self.block).to(query.device)
        mean = cache.pooled(layer, "mean", blocks.number_of_slot, blocks.count)
        route = self.choose(query, mean, blocks, q_tokens)
        tokens = {"q_tokens": q_tokens, "k_tokens": k_tokens}
        return routed_attention(query, key, value, route, self.pattern, **tokens)


def dense(query: Tensor, key: Tensor, value: Tensor, *, block: int = 4, k: int = 2) -> Tensor:
    """The same by its definition: one query after another, each with all its scores."""
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    out = torch.zeros_like(query)
    for b, h, i in torch.cartesian_prod(*(torch.arange(n) for n in query.shape[:3])).tolist():
        own = i // block
        means = [key[b, h, n * block : (n + 1) * block].mean(0) for n in range(own)]
        ranked = sorted(range(own), key=lambda n: -float(query[b, h, i] @ means[n]))
        keys = [j for j in range(i + 1) if j // block in (own, *ranked[:k])]
        weight = (key[b, h, keys] @ query[b, h, i] / query.shape[3] ** 0.5).softmax(0)
        out[b, h, i] = weight @ value[b, h, keys]
    return out


if __name__ == "__main__":
    check_mechanism(lambda: BlockTopK(block=4, k=2), reference=dense)
    print("block_topk is what its dense definition says, and keeps what it promises.")
