"""Stacks of blocks: one after the other, with caches, positions and checkpointing."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as checkpointed

from eyeline.caches import Cache, LayerCache, Layout
from eyeline.encodings import Added
from eyeline.errors import InvalidArgument
from eyeline.layers.attention import MultiHeadAttention, Projected
from eyeline.layers.block import Block, DecoderBlock
from eyeline.layers.checks import check_tokens, check_width
from eyeline.layers.positions import added_at
from eyeline.tokens import Tokens, default_tokens

# The caches of several layers: one for all that share a pattern and the shape of their keys.


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
            self._layers[kinds.index(kind)].mechanism.new_cache(
                Layout(
                    kinds.count(kind), batch, kind[1], kind[2], kind[2], weight.dtype, weight.device
                )
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
            (layer.mechanism.cache_kind, layer.num_kv_heads, layer.head_dim)
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


@final
class Stack(nn.Module):
    """x ← block(x) for each block in turn, then final_norm(x), if there is one: (B, L, width).

    An encoder; with causal patterns, a model that only decodes. Blocks may have patterns of their
    own.

    position: an encoding that is added to x before the first block, and so to queries, keys,
    values and residual. One that is added only to what queries and keys are made of belongs to
    the attention of a block, of the first or of each.
    final_norm: what pre-norm blocks need after the last of them.
    extra_tokens: so many trained vectors are put before the sequence, and taken away at the end;
    each block's attention looks with ``ExtraTokens`` of the same count.
    checkpoint: keep only what enters a block, and compute the block again in the backward pass.
    Gradients are the same, dropout included: torch's generators are set back.

    Raises InvalidArgument for no block, blocks or encodings of different widths, a position that
    is not added, and extra tokens that the blocks do not expect, or the other way round.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        *,
        position: Added | None = None,
        final_norm: nn.Module | None = None,
        extra_tokens: int = 0,
        checkpoint: bool = False,
    ) -> None:
        super().__init__()
        _check_blocks(Block, blocks)
        attentions = [block.attention for block in blocks]
        self.width = _one_width(attentions, position)
        _check_extra(attentions, extra_tokens)
        self.blocks, self.position = nn.ModuleList(blocks), position
        self.final_norm, self.checkpoint = final_norm, checkpoint
        self.extra_tokens = None
        if extra_tokens:
            self.extra_tokens = nn.Parameter(torch.empty(extra_tokens, self.width))
            nn.init.normal_(self.extra_tokens, std=0.02)

    def new_caches(self, batch: int = 1) -> list[Cache]:
        """Empty caches to read or write a text in steps, one for each kind of attention."""
        return self._caches().new(batch)

    def forward(
        self,
        x: Tensor,
        *,
        q_tokens: Tokens | None = None,
        caches: Sequence[Cache] | None = None,
    ) -> Tensor:
        """(B, L, width) to the same.

        q_tokens: what stands in each slot; 0 … L-1, or the positions that follow the caches, if
        not given. caches: from ``new_caches``; the stack advances them, once a call.
        """
        check_width("x", x, self.width)
        if q_tokens is not None:
            check_tokens("q_tokens", q_tokens, *x.shape[:2])
        places: Sequence[Any] = [None] * len(self.blocks)
        if caches is not None:
            q_tokens, places = self._caches().advance(caches, x.shape[1], q_tokens)
        x = added_at(self.position, x, q_tokens)
        if self.extra_tokens is not None:
            x, q_tokens = self._with_extra(self.extra_tokens, x, q_tokens)
        for block, place in zip(self.blocks, places, strict=True):
            x = _run(self.checkpoint, block, x, q_tokens=q_tokens, cache=place)
        if self.extra_tokens is not None:
            x = x[:, len(self.extra_tokens) :]
        return x if self.final_norm is None else self.final_norm(x)

    def _with_extra(self, extra: Tensor, x: Tensor, tokens: Tokens | None) -> tuple[Tensor, Tokens]:
        mechanism = cast(Block, self.blocks[0]).attention.mechanism
        first = extra.to(x.dtype).expand(x.shape[0], -1, -1)
        tokens = tokens if tokens is not None else default_tokens(x.shape[1], x.shape[1])[0]
        return torch.cat((first, x), 1), mechanism.beside(tokens)

    def _caches(self) -> Caches:
        return Caches([cast(Block, block).attention for block in self.blocks])


@final
class DecoderStack(nn.Module):
    """x ← block(x, memory) for each block in turn, then final_norm(x): (B, L, width).

    The decoder of an encoder–decoder; arguments as for ``Stack``. While it writes,
    ``project(memory)`` keeps each block's cross keys and values, and ``new_caches`` its own.
    """

    def __init__(
        self,
        blocks: Sequence[DecoderBlock],
        *,
        position: Added | None = None,
        final_norm: nn.Module | None = None,
        checkpoint: bool = False,
    ) -> None:
        super().__init__()
        _check_blocks(DecoderBlock, blocks)
        self.width = _one_width([block.self_attention for block in blocks], position)
        self.blocks, self.position = nn.ModuleList(blocks), position
        self.final_norm, self.checkpoint = final_norm, checkpoint

    def new_caches(self, batch: int = 1) -> list[Cache]:
        """Empty caches to write a text in steps, one for each kind of self attention."""
        return self._caches().new(batch)

    def project(self, memory: Tensor, *, memory_tokens: Tokens | None = None) -> list[Projected]:
        """Each block's keys and values of the memory (B, S, kdim), made once for all steps."""
        attentions = [cast(DecoderBlock, block).cross_attention for block in self.blocks]
        return [attention.project(memory, k_tokens=memory_tokens) for attention in attentions]

    def forward(
        self,
        x: Tensor,
        memory: Tensor | Sequence[Projected],
        *,
        q_tokens: Tokens | None = None,
        memory_tokens: Tokens | None = None,
        caches: Sequence[Cache] | None = None,
    ) -> Tensor:
        """x (B, L, width) and memory (B, S, kdim) to (B, L, width).

        memory: also what ``project`` made of it. q_tokens, memory_tokens: what stands in the slots
        of each; 0, 1, …, or what follows the caches, if not given. caches: from ``new_caches``;
        the stack advances them, once a call.
        """
        check_width("x", x, self.width)
        if q_tokens is not None:
            check_tokens("q_tokens", q_tokens, *x.shape[:2])
        places: Sequence[Any] = [None] * len(self.blocks)
        if caches is not None:
            q_tokens, places = self._caches().advance(caches, x.shape[1], q_tokens)
        x = added_at(self.position, x, q_tokens)
        if isinstance(memory, Projected):
            raise InvalidArgument(
                f"one memory projected for {len(self.blocks)} blocks: use project(memory)"
            )
        each = [memory] * len(self.blocks) if isinstance(memory, Tensor) else memory
        if len(each) != len(self.blocks):
            raise InvalidArgument(f"{len(each)} projected memories for {len(self.blocks)} blocks")
        for block, seen, place in zip(self.blocks, each, places, strict=True):
            x = _run(
                self.checkpoint, block, x, seen,
                q_tokens=q_tokens, memory_tokens=memory_tokens, cache=place,
            )  # fmt: skip
        return x if self.final_norm is None else self.final_norm(x)

    def _caches(self) -> Caches:
        return Caches([cast(DecoderBlock, block).self_attention for block in self.blocks])


def _run(checkpoint: bool, block: nn.Module, *inputs: Any, **options: Any) -> Tensor:
    if checkpoint and torch.is_grad_enabled() and options["cache"] is None:
        out: Tensor = checkpointed(block, *inputs, use_reentrant=False, **options)
    else:
        out = block(*inputs, **options)
    return out


def _check_blocks(kind: type[nn.Module], blocks: Sequence[nn.Module]) -> None:
    for block in blocks:
        if not isinstance(block, kind):
            raise InvalidArgument(
                f"blocks hold a {type(block).__name__}: this stack is made of {kind.__name__}s"
            )


def _one_width(attentions: Sequence[MultiHeadAttention], position: Added | None) -> int:
    if not attentions:
        raise InvalidArgument("a stack needs at least one block")
    widths = [attention.embed_dim for attention in attentions]
    if len(set(widths)) > 1:
        raise InvalidArgument(f"blocks of widths {widths}: a stack has one width")
    if isinstance(position, type):
        raise InvalidArgument(f"position is the class {position.__name__}: make one of it")
    if position is not None and not isinstance(position, Added):
        raise InvalidArgument(
            f"position is a {type(position).__name__}: a stack adds an encoding (Sinusoidal, "
            "Learned) to its input; what turns or changes scores belongs to the attention of its "
            "blocks, MultiHeadAttention(…, position=…), and BlockShape(…).stack(…) puts it there"
        )
    if position is not None and position.width != widths[0]:
        raise InvalidArgument(f"{position} is added to vectors of width {widths[0]}")
    return widths[0]


def _check_extra(attentions: Sequence[MultiHeadAttention], count: int) -> None:
    for attention in attentions:
        expected = attention.mechanism.extra_slots
        if expected != count:
            raise InvalidArgument(
                f"extra_tokens={count}, and the attention of a block expects {expected}: give "
                f"each MultiHeadAttention(…, mechanism=ExtraTokens(Exact(pattern), {count}))"
            )
