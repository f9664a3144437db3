"""The shape of a block, from which blocks and stacks are made, one pattern each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, final

from torch import nn

from eyeline.errors import InvalidArgument
from eyeline.exact.call import PatternLike
from eyeline.layers.attention import MultiHeadAttention
from eyeline.layers.block import Block, DecoderBlock, Norm
from eyeline.layers.feedforward import Activation, FeedForward, GatedFeedForward, RMSNorm
from eyeline.layers.positions import Position, sorted_positions
from eyeline.layers.stack import DecoderStack, Stack
from eyeline.mechanisms import Exact, ExtraTokens
from eyeline.patterns import Causal, Full

Feed = Literal["relu", "gelu", "gelu_tanh", "swiglu", "geglu"]
"""The feed-forward: f alone (``FeedForward``), or gated (``GatedFeedForward``)."""

PositionAt = Literal["input", "first", "each"]
"""Where an encoding is added: to the stack's input, and so to everything; or to what queries and
keys are made of, but not values, in the first layer or in each."""

Positions = Position | Sequence[Position] | None
_GATED: dict[str, Activation] = {"swiglu": "silu", "geglu": "gelu"}
_NORMS: dict[str, type[nn.Module]] = {"layer": nn.LayerNorm, "rms": RMSNorm}


@final
@dataclass(frozen=True)
class BlockShape:
    """The sizes and kinds of a block's parts. width: of a token; hidden: of its feed-forward.

    heads, kv_heads: as num_heads and num_kv_heads of ``MultiHeadAttention``. norm: where norms
    stand; norms: which they are. bias: of projections and of a plain feed-forward. dropout: of
    weights, inside the feed-forward, and of what is added to the residual, as in torch.

    ``stack`` and ``decoder`` make whole stacks. ``block`` makes one block, for stacks whose blocks
    differ in more than their pattern, such as each with trained score modifiers of its own.
    """

    width: int
    heads: int
    hidden: int
    kv_heads: int | None = None
    norm: Norm = "pre"
    norms: Literal["layer", "rms"] = "layer"
    feed: Feed = "gelu"
    bias: bool = True
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.norms not in _NORMS:
            raise InvalidArgument(f"norms={self.norms!r}: it is one of {', '.join(_NORMS)}")
        if self.feed in _GATED and self.dropout:
            raise InvalidArgument(f"feed={self.feed!r} has no dropout: use a plain one, or 0")

    def block(
        self, pattern: PatternLike = Full(), *, position: Positions = None, extra_tokens: int = 0
    ) -> Block:
        """One block under a pattern. position: as for ``MultiHeadAttention``."""
        attention = self._attention(pattern, position, extra_tokens)
        return Block(attention, self._feed_forward(), **self._rest())

    def decoder_block(
        self,
        pattern: PatternLike = Causal(),
        *,
        memory_pattern: PatternLike = Full(),
        position: Positions = None,
    ) -> DecoderBlock:
        """One decoder block; its self attention has the pattern and the position."""
        own, cross = self._attention(pattern, position), self._attention(memory_pattern, None)
        return DecoderBlock(own, cross, self._feed_forward(), **self._rest())

    def stack(
        self,
        layers: int,
        pattern: PatternLike | Sequence[PatternLike] = Full(),
        *,
        position: Positions = None,
        position_at: PositionAt = "input",
        extra_tokens: int = 0,
        checkpoint: bool = False,
    ) -> Stack:
        """A stack of so many blocks, with a final norm if they are pre-norm.

        pattern: one for all layers, or a list with one for each. position: as for
        ``MultiHeadAttention``; what turns or changes scores does so in every layer, and all layers
        share what is trained in it. position_at: where an encoding is added. extra_tokens,
        checkpoint: as for ``Stack``.

        Raises InvalidArgument for a number of patterns that is not that of the layers.
        """
        at_input, inside = _spread(position, position_at, layers)
        rules = _per_layer(pattern, layers)
        return Stack(
            [
                self.block(rule, position=own, extra_tokens=extra_tokens)
                for rule, own in zip(rules, inside, strict=True)
            ],
            position=at_input,
            final_norm=self._final_norm(),
            extra_tokens=extra_tokens,
            checkpoint=checkpoint,
        )

    def decoder(
        self,
        layers: int,
        pattern: PatternLike | Sequence[PatternLike] = Causal(),
        *,
        memory_pattern: PatternLike = Full(),
        position: Positions = None,
        position_at: PositionAt = "input",
        checkpoint: bool = False,
    ) -> DecoderStack:
        """As ``stack``, of decoder blocks; memory_pattern: who may look at whom in the memory."""
        at_input, inside = _spread(position, position_at, layers)
        rules = _per_layer(pattern, layers)
        return DecoderStack(
            [
                self.decoder_block(rule, memory_pattern=memory_pattern, position=own)
                for rule, own in zip(rules, inside, strict=True)
            ],
            position=at_input,
            final_norm=self._final_norm(),
            checkpoint=checkpoint,
        )

    def _attention(
        self, pattern: PatternLike, position: Positions, extra_tokens: int = 0
    ) -> MultiHeadAttention:
        given: dict[str, Any] = {"pattern": pattern, "position": position, "dropout": self.dropout}
        if extra_tokens:
            found = sorted_positions(position)
            exact = Exact(pattern, score_mod=found.score_mods, dropout=self.dropout)
            placed = [x for x in (found.added, found.rotary) if x is not None]
            given = {"mechanism": ExtraTokens(exact, extra_tokens), "position": placed}
        return MultiHeadAttention(
            self.width, self.heads, num_kv_heads=self.kv_heads, bias=self.bias, **given
        )

    def _feed_forward(self) -> nn.Module:
        if self.feed in _GATED:
            return GatedFeedForward(self.width, self.hidden, activation=_GATED[self.feed])
        return FeedForward(
            self.width,
            self.hidden,
            activation=cast(Activation, self.feed),
            bias=self.bias,
            dropout=self.dropout,
        )

    def _rest(self) -> dict[str, Any]:
        return {"norm": self.norm, "make_norm": _NORMS[self.norms], "dropout": self.dropout}

    def _final_norm(self) -> nn.Module | None:
        return _NORMS[self.norms](self.width) if self.norm == "pre" else None


def _spread(position: Positions, at: str, layers: int) -> tuple[Any, list[list[Position]]]:
    """What is added to the input, and what each layer is given."""
    if at not in ("input", "first", "each"):
        raise InvalidArgument(
            f'position_at={at!r}: "input", or "first" or "each" layer\'s queries and keys'
        )
    found = sorted_positions(position)
    always: list[Position] = list(found.score_mods)
    if found.rotary is not None:
        always.append(found.rotary)
    if found.added is None or at == "input":
        return found.added, [always] * layers
    with_added = [*always, found.added]
    return None, [with_added if at == "each" or layer == 0 else always for layer in range(layers)]


def _per_layer(pattern: PatternLike | Sequence[PatternLike], layers: int) -> list[PatternLike]:
    if not isinstance(pattern, (list, tuple)):
        return [pattern] * layers  # type: ignore[list-item]
    if len(pattern) != layers:
        raise InvalidArgument(f"{len(pattern)} patterns for {layers} layers: one, or one each")
    return list(pattern)
