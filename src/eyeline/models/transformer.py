"""The Transformer: an encoder reads a text, a decoder writes another and looks back at the first.

Vaswani et al. 2017, "Attention Is All You Need". From top to bottom: the configuration, the model,
and the layers of its two halves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from eyeline.caches import Cache
from eyeline.checks import check_number, check_size, probability
from eyeline.encodings import Sinusoidal
from eyeline.layers import (
    Block,
    DecoderBlock,
    DecoderStack,
    FeedForward,
    MultiHeadAttention,
    Projected,
    Stack,
)
from eyeline.layers.checks import check_tokens
from eyeline.layers.positions import added_at
from eyeline.layers.stack import following
from eyeline.mechanisms import Heads, Recipe
from eyeline.models.base import Model, apart, check_heads, check_ids, per_layer, really
from eyeline.patterns import Causal, Full, Pattern
from eyeline.tokens import Tokens

_Choice = TypeVar("_Choice", Pattern, Recipe)


# --- Configuration -------------------------------------------------------------------------------


@dataclass(frozen=True)
class TransformerConfig:
    """The sizes of a Transformer. Raises InvalidArgument for those that do not fit together.

    vocabulary: ids of the text that is written, and of the one that is read too, with one
    embedding for both, unless source_vocabulary says how many those are. layers: of the encoder,
    and of the decoder unless decoder_layers says otherwise. tied: the head is the embedding.
    norm: "post" as in the paper, or "pre", which trains without a long warm-up (Xiong et al.
    2020). dropout: of what is added to the residual, and of embeddings with their positions, as in
    the paper; attention_dropout: of attention weights; both while training. There is no longest
    text: positions are sinusoidal.
    """

    vocabulary: int
    width: int
    hidden: int
    layers: int
    heads: int
    decoder_layers: int | None = None
    source_vocabulary: int | None = None
    tied: bool = True
    norm: Literal["pre", "post"] = "post"
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] = "relu"
    dropout: float = 0.0
    attention_dropout: float = 0.0
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        for name in (
            "vocabulary",
            "hidden",
            "layers",
            "heads",
            "writing_layers",
            "read_vocabulary",
        ):
            check_size(name, getattr(self, name))
        check_size("width", self.width, even=True)  # a sine and a cosine for each speed
        check_heads(self.width, self.heads)
        check_number("norm_eps", self.norm_eps)
        probability("dropout", self.dropout)
        probability("attention_dropout", self.attention_dropout)

    @property
    def writing_layers(self) -> int:
        """Layers of the decoder."""
        return self.decoder_layers if self.decoder_layers is not None else self.layers

    @property
    def read_vocabulary(self) -> int:
        """Ids of the text that is read."""
        return self.source_vocabulary if self.source_vocabulary is not None else self.vocabulary


# --- Model ---------------------------------------------------------------------------------------


@final
class Transformer(Model):
    """p(target | source): source ids (B, S), target ids (B, T) → logits (B, T, vocabulary).

    memory = encoder(√width · E[source] + p);  logits = decoder(√width · E[target] + p, memory) Eᵀ,
    p the sinusoidal positions. Logits at i are those of what follows target[i].

    pattern, mechanism: of the decoder's self attention, Causal() if not given; encoder_…: of the
    encoder, Full(); memory_…: of the decoder's look at the memory, Full(), where queries have the
    positions of the target and keys those of the source. Each one for all layers, or a list with
    one per layer. They stay as attributes of these names, a tuple with one for each layer.

    Raises InvalidArgument for a number of patterns or mechanisms that is not that of the layers.
    """

    config: TransformerConfig

    def __init__(
        self,
        config: TransformerConfig,
        pattern: Pattern | Sequence[Pattern] | None = None,
        *,
        encoder_pattern: Pattern | Sequence[Pattern] | None = None,
        memory_pattern: Pattern | Sequence[Pattern] | None = None,
        mechanism: Recipe | Sequence[Recipe] | None = None,
        encoder_mechanism: Recipe | Sequence[Recipe] | None = None,
        memory_mechanism: Recipe | Sequence[Recipe] | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        above, below = config.writing_layers, config.layers
        self.pattern = _each("patterns", pattern, above, Causal())
        self.encoder_pattern = _each("encoder patterns", encoder_pattern, below, Full())
        self.memory_pattern = _each("memory patterns", memory_pattern, above, Full())
        self.mechanism = _each("mechanisms", mechanism, above, Recipe())
        self.encoder_mechanism = _each("encoder mechanisms", encoder_mechanism, below, Recipe())
        self.memory_mechanism = _each("memory mechanisms", memory_mechanism, above, Recipe())
        self.embedding = _embedding(config.vocabulary, config.width)
        self.source_embedding = (
            None
            if config.source_vocabulary is None
            else _embedding(config.source_vocabulary, config.width)
        )
        self.position, self.dropout = Sinusoidal(config.width), nn.Dropout(config.dropout)
        self.encoder = _encoder(config, self.encoder_pattern, self.encoder_mechanism)
        own = list(zip(self.pattern, self.mechanism, strict=True))
        cross = list(zip(self.memory_pattern, self.memory_mechanism, strict=True))
        self.decoder = _decoder(config, own, cross)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        if config.tied:
            self.head.weight = self.embedding.weight

    def choices(self) -> dict[str, Any]:
        return {
            "pattern": self.pattern,
            "encoder_pattern": self.encoder_pattern,
            "memory_pattern": self.memory_pattern,
            "mechanism": self.mechanism,
            "encoder_mechanism": self.encoder_mechanism,
            "memory_mechanism": self.memory_mechanism,
        }

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        *,
        source_tokens: Tokens | None = None,
        target_tokens: Tokens | None = None,
    ) -> Tensor:
        """Logits (B, T, vocabulary) of what follows each id of the target.

        source_tokens, target_tokens: what stands in each slot, as of ``Tokens.padded``; 0, 1, …
        if not given. Any id may fill the slots of nobody: it changes nothing elsewhere.
        """
        memory = self.encode(source, source_tokens=source_tokens)
        return self.decode(target, memory, target_tokens=target_tokens, source_tokens=source_tokens)

    def encode(self, source: Tensor, *, source_tokens: Tokens | None = None) -> Tensor:
        """The memory of a text: ids (B, S) → (B, S, width)."""
        table = self.source_embedding if self.source_embedding is not None else self.embedding
        tokens = _standing("source", source, table, source_tokens, position=0)
        out: Tensor = self.encoder(self._placed(source, table, tokens), q_tokens=tokens)
        return out

    def decode(
        self,
        target: Tensor,
        memory: Tensor | Sequence[Projected],
        *,
        target_tokens: Tokens | None = None,
        source_tokens: Tokens | None = None,
        caches: Sequence[Cache] | None = None,
        last_only: bool = False,
    ) -> Tensor:
        """Logits (B, T, vocabulary), or (B, 1, vocabulary) if they are only of the last id.

        memory: what ``encode`` returned, or what ``project`` made of it, which knows where the
        source stands. caches: from ``new_caches``, to write in steps; target_tokens are then
        those of the step, the positions that follow if not given.
        """
        hidden = self._hidden(target, memory, target_tokens, source_tokens, caches)
        logits: Tensor = self.head(hidden[:, -1:] if last_only else hidden)
        return logits

    def new_caches(self, batch: int = 1) -> list[Cache]:
        """Empty caches of the decoder's self attention, for so many texts at once."""
        return self.decoder.new_caches(batch)

    def project(self, memory: Tensor, *, source_tokens: Tokens | None = None) -> list[Projected]:
        """Each decoder layer's keys and values of the memory, made once for all steps."""
        return self.decoder.project(memory, memory_tokens=source_tokens)

    def losses(
        self,
        source: Tensor,
        target: Tensor,
        *,
        source_tokens: Tokens | None = None,
        target_tokens: Tokens | None = None,
        label_smoothing: float = 0.0,
        chunk: int = 256,
    ) -> Tensor:
        """-log p(target i + 1 | source, target up to i), in nats: float32 (B, T - 1).

        0 where target i or i + 1 is nobody, or they are of different documents, so a mean is the
        sum over the number of others.
        label_smoothing ε: (1 - ε) of that, and ε of the mean of -log p over the vocabulary
        (Szegedy et al. 2016). Logits are made for ``chunk`` positions at a time.
        """
        memory = self.encode(source, source_tokens=source_tokens)
        hidden = self._hidden(target, memory, target_tokens, source_tokens, None)[:, :-1]
        wanted = _wanted(target, target_tokens)
        pieces = [
            functional.cross_entropy(
                self.head(hidden[:, start : start + chunk]).float().transpose(1, 2),
                wanted[:, start : start + chunk],
                reduction="none",
                label_smoothing=label_smoothing,
            )
            for start in range(0, hidden.shape[1], chunk)
        ]
        return torch.cat(pieces, 1) if pieces else hidden.new_zeros(hidden.shape[:2]).float()

    def _hidden(
        self,
        target: Tensor,
        memory: Tensor | Sequence[Projected],
        target_tokens: Tokens | None,
        source_tokens: Tokens | None,
        caches: Sequence[Cache] | None,
    ) -> Tensor:
        """What the head is applied to: (B, T, width)."""
        position = caches[0].position if caches else 0
        tokens = _standing("target", target, self.embedding, target_tokens, position=position)
        x = self._placed(target, self.embedding, tokens)
        out: Tensor = self.decoder(
            x, memory, q_tokens=tokens, memory_tokens=source_tokens, caches=caches
        )
        return out

    def _placed(self, ids: Tensor, table: nn.Embedding, tokens: Tokens) -> Tensor:
        """Embeddings, as large as the positions that are added to them: (B, L, width)."""
        out: Tensor = self.dropout(
            added_at(self.position, table(ids) * math.sqrt(self.config.width), tokens)
        )
        return out


# --- The two halves ------------------------------------------------------------------------------


def _encoder(
    config: TransformerConfig, patterns: Sequence[Pattern], mechanisms: Sequence[Recipe]
) -> Stack:
    """Self attention and feed-forward, layer by layer."""
    blocks = [
        Block(_attention(config, pattern, mechanism), _feed_forward(config), **_rest(config))
        for pattern, mechanism in zip(patterns, mechanisms, strict=True)
    ]
    return Stack(blocks, final_norm=_final_norm(config))


_Looks = Sequence[tuple[Pattern, Recipe]]


def _decoder(config: TransformerConfig, own: _Looks, cross: _Looks) -> DecoderStack:
    """Self attention, a look at the memory, and feed-forward, layer by layer."""
    blocks = [
        DecoderBlock(
            _attention(config, *one),
            _attention(config, *other),
            _feed_forward(config),
            **_rest(config),
        )
        for one, other in zip(own, cross, strict=True)
    ]
    return DecoderStack(blocks, final_norm=_final_norm(config))


def _attention(
    config: TransformerConfig, pattern: Pattern, mechanism: Recipe
) -> MultiHeadAttention:
    heads = Heads(config.heads, config.heads, config.width // config.heads)
    with really():
        made = mechanism.make(pattern, heads, dropout=config.attention_dropout)
    return MultiHeadAttention(config.width, config.heads, mechanism=made)


def _feed_forward(config: TransformerConfig) -> FeedForward:
    return FeedForward(config.width, config.hidden, activation=config.activation)


def _rest(config: TransformerConfig) -> dict[str, Any]:
    norm = partial(nn.LayerNorm, eps=config.norm_eps)
    return {"norm": config.norm, "make_norm": norm, "dropout": config.dropout}


def _final_norm(config: TransformerConfig) -> nn.Module | None:
    """What pre-norm blocks need after the last of them."""
    return nn.LayerNorm(config.width, eps=config.norm_eps) if config.norm == "pre" else None


def _embedding(vocabulary: int, width: int) -> nn.Embedding:
    """Of variance 1 / (2 width): √width times it is as large as the positions added to it.

    Twice the variance, which hides positions, learns to copy a text in many more steps.
    """
    bound = math.sqrt(3 / (2 * width))
    # Not nn.Embedding(…): on the meta device its normal_ imports a second's worth of modules.
    drawn = nn.init.uniform_(torch.empty(vocabulary, width), -bound, bound)
    made: nn.Embedding = nn.Embedding.from_pretrained(drawn, freeze=False)
    return made


# --- What is given, checked ----------------------------------------------------------------------


def _each(
    name: str, given: _Choice | Sequence[_Choice] | None, layers: int, default: _Choice
) -> tuple[_Choice, ...]:
    return tuple(per_layer(name, given, layers, default=default))


def _standing(
    name: str, ids: Tensor, table: nn.Embedding, tokens: Tokens | None, *, position: int | Tensor
) -> Tokens:
    """The tokens of ids (B, L); from ``position`` on if they are not given."""
    check_ids(ids, table.num_embeddings, word=f"{name} id")
    if tokens is None:
        return following(position, ids.shape[1])
    check_tokens(f"{name}_tokens", tokens, *ids.shape)
    return tokens


def _wanted(target: Tensor, tokens: Tokens | None) -> Tensor:
    """What each slot but the last is to predict: (B, T - 1), -100 where nothing is asked."""
    wanted = target[:, 1:].long()
    return wanted if tokens is None else wanted.masked_fill(apart(tokens).to(target.device), -100)
