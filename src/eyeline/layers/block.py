"""Blocks: attention, then each token alone, each with a residual and a norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, final

from torch import Tensor, nn

from eyeline.caches import LayerCache
from eyeline.checks import probability
from eyeline.errors import InvalidArgument
from eyeline.layers.attention import MultiHeadAttention, Projected
from eyeline.layers.checks import check_width
from eyeline.layers.feedforward import FeedForward, GatedFeedForward
from eyeline.tokens import Tokens, default_tokens

Norm = Literal["pre", "post"]
"""Where a norm stands: "pre" is x + f(norm(x)), "post" is norm(x + f(x))."""

MakeNorm = Callable[[int], nn.Module]
"""A norm for so many features: nn.LayerNorm, RMSNorm, or another."""


@final
class Block(nn.Module):
    """x + f(norm(x)), or norm(x + f(x)), for f = attention and then f = feed_forward.

    An encoder's block; with a causal pattern, that of a model that only decodes. x: (B, L, width),
    width being the attention's embed_dim. norm: "post" as in Vaswani et al. 2017 and torch's
    default, or "pre" (Xiong et al. 2020), after whose last block another norm is needed.
    make_norm: called with the width for each norm. dropout: of each f(…), while training.

    Raises InvalidArgument for another norm, a dropout that is not a probability below 1, and a
    FeedForward of another width.
    """

    def __init__(
        self,
        attention: MultiHeadAttention,
        feed_forward: nn.Module,
        *,
        norm: Norm = "post",
        make_norm: MakeNorm = nn.LayerNorm,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        _check_parts(feed_forward, attention=attention)
        self.norm = _known(norm)
        self.attention = attention
        self.attention_norm = make_norm(attention.embed_dim)
        self.feed_forward = feed_forward
        self.feed_forward_norm = make_norm(attention.embed_dim)
        self.dropout = nn.Dropout(probability("dropout", dropout))

    def forward(
        self,
        x: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """(B, L, width) to the same. Arguments as for ``MultiHeadAttention``.

        Slots of nobody are worked on alone: what stands there reaches no token.
        """
        check_width("x", x, self.attention.embed_dim)

        def attend(x: Tensor) -> Tensor:
            out: Tensor = self.attention(x, q_tokens=q_tokens, k_tokens=k_tokens, cache=cache)
            return out

        x = _residual(self, x, attend, self.attention_norm)
        return _residual(self, x, self.feed_forward, self.feed_forward_norm)

    def extra_repr(self) -> str:
        return f"norm={self.norm!r}"


@final
class DecoderBlock(nn.Module):
    """As ``Block``, for f = self attention, then cross attention to a memory, then feed_forward.

    Queries of the cross attention come from x (B, L, width), keys and values from the memory
    (B, S, kdim of cross_attention). For training with teacher forcing self_attention has a causal
    pattern. Vaswani et al. 2017.

    Raises InvalidArgument for blocks of different widths, and as ``Block``.
    """

    def __init__(
        self,
        self_attention: MultiHeadAttention,
        cross_attention: MultiHeadAttention,
        feed_forward: nn.Module,
        *,
        norm: Norm = "post",
        make_norm: MakeNorm = nn.LayerNorm,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        _check_parts(feed_forward, self_attention=self_attention, cross_attention=cross_attention)
        width = self_attention.embed_dim
        self.norm = _known(norm)
        self.self_attention = self_attention
        self.self_attention_norm = make_norm(width)
        self.cross_attention = cross_attention
        self.cross_attention_norm = make_norm(width)
        self.feed_forward = feed_forward
        self.feed_forward_norm = make_norm(width)
        self.dropout = nn.Dropout(probability("dropout", dropout))

    def forward(
        self,
        x: Tensor,
        memory: Tensor | Projected,
        *,
        q_tokens: Tokens | None = None,
        memory_tokens: Tokens | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """x (B, L, width) and memory (B, S, kdim) to (B, L, width).

        memory: also what ``cross_attention.project`` returned, made once for all steps.
        q_tokens, memory_tokens: what stands in the slots of x and of memory; 0, 1, … each, if
        not given, or what ``project`` was told. cache: as for ``MultiHeadAttention``, for the self
        attention.
        """
        check_width("x", x, self.self_attention.embed_dim)
        q = q_tokens if q_tokens is not None else default_tokens(x.shape[1], x.shape[1])[0]
        k = memory_tokens if memory_tokens is not None else _standing(memory)

        def attend(x: Tensor) -> Tensor:
            out: Tensor = self.self_attention(x, q_tokens=q_tokens, cache=cache)
            return out

        def look(x: Tensor) -> Tensor:
            out: Tensor = self.cross_attention(x, memory, q_tokens=q, k_tokens=k)
            return out

        x = _residual(self, x, attend, self.self_attention_norm)
        x = _residual(self, x, look, self.cross_attention_norm)
        return _residual(self, x, self.feed_forward, self.feed_forward_norm)

    def extra_repr(self) -> str:
        return f"norm={self.norm!r}"


def _check_parts(feed_forward: nn.Module, **attentions: MultiHeadAttention) -> None:
    """Raise InvalidArgument unless all are of one width, as far as they say it."""
    for name, attention in attentions.items():
        if not isinstance(attention, MultiHeadAttention):
            raise InvalidArgument(
                f"{name} is a {type(attention).__name__}: a block takes a MultiHeadAttention, "
                "which may look by any mechanism"
            )
    widths = {name: attention.embed_dim for name, attention in attentions.items()}
    width = next(iter(widths.values()))
    named = " and ".join(f"{name} has embed_dim={size}" for name, size in widths.items())
    if set(widths.values()) != {width}:
        raise InvalidArgument(f"{named}: a block has one width")
    if isinstance(feed_forward, (FeedForward, GatedFeedForward)) and feed_forward.width != width:
        raise InvalidArgument(
            f"a {type(feed_forward).__name__} of width {feed_forward.width} and {named}: a block "
            "has one width"
        )


def _standing(memory: Tensor | Projected) -> Tokens:
    if isinstance(memory, Projected) and memory.tokens is not None:
        return memory.tokens
    length = (memory.key if isinstance(memory, Projected) else memory).shape[-2]
    return default_tokens(length, length)[0]


def _residual(
    block: Block | DecoderBlock, x: Tensor, function: Callable[[Tensor], Tensor], norm: nn.Module
) -> Tensor:
    out: Tensor
    if block.norm == "pre":
        out = x + block.dropout(function(norm(x)))
    else:
        out = norm(x + block.dropout(function(x)))
    return out


def _known(norm: str) -> str:
    if norm not in ("pre", "post"):
        raise InvalidArgument(f'norm={norm!r}: "pre" is x + f(norm(x)), "post" is norm(x + f(x))')
    return norm
