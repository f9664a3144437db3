"""GPT-2: learned positions, one projection for queries, keys and values, norms before each part.

Radford et al. 2019, "Language Models are Unsupervised Multitask Learners". From top to bottom: the
configuration and what it refuses, the names of the weights in files, and the model. What happens
between the lines, in small steps with names, is in ``eyeline.models.trace``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from eyeline.caches import Cache
from eyeline.checks import check_number, check_sizes, probability
from eyeline.layers import FeedForward, LayerCache, by_rows
from eyeline.layers.feedforward import Activation
from eyeline.mechanisms import Mechanism, Recipe
from eyeline.models.base import (
    Form,
    LanguageModel,
    Names,
    Part,
    check_apart,
    check_heads,
    drawn,
)  # fmt: skip
from eyeline.models.config_reader import Attributes
from eyeline.patterns import Causal, Pattern
from eyeline.tokens import NOBODY, Tokens

# --- Configuration -------------------------------------------------------------------------------


@dataclass(frozen=True)
class GPT2Config:
    """The sizes of a GPT-2. Raises InvalidArgument for sizes that do not fit together.

    trained_length: how many positions have been learned; there are no others. dropout: of what
    each part adds to the residual, while training; embedding_dropout: of the first sum, the same
    if not given; attention_dropout: of attention weights, which costs much on a CPU.
    """

    vocabulary: int
    width: int
    hidden: int
    layers: int
    heads: int
    trained_length: int
    norm_eps: float = 1e-5
    activation: Activation = "gelu_tanh"
    tied: bool = True
    dropout: float = 0.0
    embedding_dropout: float | None = None
    attention_dropout: float = 0.0

    def __post_init__(self) -> None:
        check_sizes(
            vocabulary=self.vocabulary, width=self.width, hidden=self.hidden, layers=self.layers,
            heads=self.heads, trained_length=self.trained_length,
        )  # fmt: skip
        check_heads(self.width, self.heads)
        check_number("norm_eps", self.norm_eps)
        for name in ("dropout", "first_dropout", "attention_dropout"):
            probability(name, getattr(self, name))

    @property
    def kv_heads(self) -> int:
        """Each query head has keys of its own."""
        return self.heads

    @property
    def head_dim(self) -> int:
        """The width of a head."""
        return self.width // self.heads

    @property
    def pattern(self) -> Pattern:
        """Who looked at whom when the model was trained."""
        return Causal()

    @property
    def first_dropout(self) -> float:
        """Of the sum of embedding and position."""
        return self.embedding_dropout if self.embedding_dropout is not None else self.dropout

    @staticmethod
    def from_hf(values: Mapping[str, object], there: Collection[str] = ()) -> GPT2Config:
        """From a Hugging Face config.json. Unknown attributes raise NotSupported by name."""
        attributes = Attributes(values, model="gpt2")
        attributes.require("model_type", "gpt2")
        width, length = attributes.whole("n_embd"), attributes.whole("n_positions", 1024)
        attributes.expect("n_ctx", length, None)
        config = GPT2Config(
            vocabulary=attributes.whole("vocab_size"),
            width=width,
            hidden=attributes.whole("n_inner", 4 * width),
            layers=attributes.whole("n_layer"),
            heads=attributes.whole("n_head"),
            trained_length=length,
            norm_eps=attributes.number("layer_norm_epsilon", 1e-5),
            activation=_activation(attributes.optional("activation_function")),
            tied=attributes.flag("tie_word_embeddings", True),
            dropout=attributes.probability("resid_pdrop", 0.1),
            embedding_dropout=attributes.probability("embd_pdrop", 0.1),
            attention_dropout=attributes.probability("attn_pdrop", 0.1),
        )
        _refuse_hf(attributes)
        return config

    @staticmethod
    def from_gguf(values: Mapping[str, object], *, tied: bool) -> GPT2Config:
        """From GGUF metadata; tied: the file has no output matrix, so the embedding serves."""
        attributes = Attributes(values, model="gpt2")
        attributes.require("general.architecture", "gpt2")
        width = attributes.whole("gpt2.embedding_length")
        heads = attributes.whole("gpt2.attention.head_count")
        attributes.expect("gpt2.attention.head_count_kv", heads)
        config = GPT2Config(
            vocabulary=attributes.whole("gpt2.vocab_size"),
            width=width,
            hidden=attributes.whole("gpt2.feed_forward_length", 4 * width),
            layers=attributes.whole("gpt2.block_count"),
            heads=heads,
            trained_length=attributes.whole("gpt2.context_length"),
            norm_eps=attributes.number("gpt2.attention.layer_norm_epsilon"),
            tied=tied,
        )
        attributes.harmless((), prefixes=("general.", "quantize.", "GGUF."))
        attributes.done()
        return config


_ACTIVATIONS: Mapping[object, Activation] = {
    None: "gelu_tanh", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu", "relu": "relu", "silu": "silu", "swish": "silu",
}  # fmt: skip
# What a Hugging Face config may also say, and what changes nothing here. The summaries belong to
# another head; reordering and upcasting change only how half types are rounded.
_HARMLESS = frozenset({
    "architectures", "torch_dtype", "dtype", "transformers_version", "auto_map", "_name_or_path",
    "initializer_range", "use_cache", "return_dict", "output_hidden_states", "output_attentions",
    "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "chunk_size_feed_forward",
    "id2label", "label2id", "problem_type", "task_specific_params", "gradient_checkpointing",
    "reorder_and_upcast_attn", "summary_type", "summary_use_proj", "summary_activation",
    "summary_proj_to_labels", "summary_first_dropout",
})  # fmt: skip


def _activation(word: object) -> Activation:
    # Among what can be named, only words: a list cannot be looked up.
    if not isinstance(word, (str, type(None))) or word not in _ACTIVATIONS:
        Attributes({}, model="gpt2").refuse("activation_function", word, *_ACTIVATIONS)
    return _ACTIVATIONS[word]


def _refuse_hf(attributes: Attributes) -> None:
    attributes.expect("scale_attn_weights", True)
    attributes.expect("scale_attn_by_inverse_layer_idx", False)
    attributes.expect("add_cross_attention", False)
    attributes.expect("is_encoder_decoder", False)
    attributes.harmless(_HARMLESS)
    attributes.done()


# --- Names ---------------------------------------------------------------------------------------

_NAMES = {
    "huggingface": (
        "wte wpe ln_f lm_head h.{} ln_1 attn.c_attn attn.c_proj ln_2 mlp.c_fc mlp.c_proj"
    ),
    "gguf": (
        "token_embd position_embd output_norm output blk.{} attn_norm attn_qkv attn_output "
        "ffn_norm ffn_up ffn_down"
    ),
}
_PREFIX = "transformer."


def weight_names(config: GPT2Config, form: Form, there: Collection[str] = ()) -> Names:
    """For each parameter of GPT2 the file's tensor.

    Hugging Face stores the weights of projections as (in, out), and the names of some files begin
    with "transformer."; there: the names of this one.
    """
    hugging = form == "huggingface"
    prefix = _PREFIX if hugging and any(name.startswith(_PREFIX) for name in there) else ""
    words = [prefix + word for word in _NAMES[form].split()[:5]]
    embedding, positions, norm, _, layer = words
    first, qkv, out, second, up, down = _NAMES[form].split()[5:]
    names = {"embedding.weight": [Part(f"{embedding}.weight")]}
    names["positions.weight"] = [Part(f"{positions}.weight")]
    for index in range(config.layers):
        for ours, theirs, matrix in (
            ("attention_norm", first, False),
            ("attention.qkv", qkv, True),
            ("attention.out", out, True),
            ("feed_forward_norm", second, False),
            ("feed_forward.up", up, True),
            ("feed_forward.down", down, True),
        ):
            file = f"{layer.format(index)}.{theirs}"
            weight = Part(f"{file}.weight", transposed=hugging and matrix)
            names[f"layers.{index}.{ours}.weight"] = [weight]
            names[f"layers.{index}.{ours}.bias"] = [Part(f"{file}.bias")]
    names |= {f"norm.{leaf}": [Part(f"{norm}.{leaf}")] for leaf in ("weight", "bias")}
    if not config.tied:
        names["head.weight"] = [Part("lm_head.weight" if hugging else "output.weight")]
    return names


def derived(name: str) -> bool:
    """Old Hugging Face files store the causal mask, and what stood for minus infinity."""
    return name.endswith((".attn.bias", ".attn.masked_bias"))


# --- Model ---------------------------------------------------------------------------------------


class Step(NamedTuple):
    """What the layers that share a pattern also share in one step."""

    q_tokens: Tokens
    k_tokens: Tokens
    cache: Cache | None


@final
class Attention(nn.Module):
    """Heads split, each looking by a mechanism, and merged: (B, L, width) → the same.

    index: the layer's number in the cache that it writes to.
    """

    def __init__(self, config: GPT2Config, mechanism: Mechanism, *, index: int) -> None:
        super().__init__()
        self.heads, self.index = config.heads, index
        self.qkv = nn.Linear(config.width, 3 * config.width)
        check_apart(mechanism)
        self.mechanism = mechanism
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        query, key, value = self.split(self.qkv(x))
        place = None if step.cache is None else LayerCache(step.cache, self.index)
        seen = self.mechanism.attend(
            query, key, value,
            q_tokens=step.q_tokens, k_tokens=step.k_tokens, place=place, inputs=x,
        )  # fmt: skip
        out: Tensor = self.out(merge(seen))
        return out

    def split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values stand one after the other, (B, L, 3 · width), the heads in each.

        Returns (B, H, L, E) of each.
        """
        batch, length, _ = qkv.shape
        heads = qkv.view(batch, length, 3 * self.heads, -1).transpose(1, 2)
        query, key, value = heads.split(self.heads, 1)
        return query, key, value


def merge(heads: Tensor) -> Tensor:
    """(B, H, L, E) → (B, L, H · E)."""
    batch, count, length, width = heads.shape
    return heads.transpose(1, 2).reshape(batch, length, count * width)


@final
class Block(nn.Module):
    """x + dropout(attention(norm(x))), then x + dropout(feed_forward(norm(x)))."""

    def __init__(self, config: GPT2Config, mechanism: Mechanism, *, index: int) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.attention_norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.attention = Attention(config, mechanism, index=index)
        self.feed_forward_norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.feed_forward = FeedForward(config.width, config.hidden, activation=config.activation)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        x = x + self._dropped(self.attention(self.attention_norm(x), step))
        return by_rows(self._fed, x)

    def _fed(self, x: Tensor) -> Tensor:
        return x + self._dropped(self.feed_forward(self.feed_forward_norm(x)))

    def _dropped(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.dropout) if self.dropout and self.training else x


@final
class GPT2(LanguageModel):
    """The language model: ids (B, L) → logits (B, L, vocabulary).

    pattern: one for all layers, or a list with one per layer; Causal() if not given. mechanism:
    likewise, how each layer looks; exact if not given.

    Positions are those of the tokens, so a row that is padded on the left counts its real tokens
    only, and packed documents each begin at 0.

    Weights start as published: N(0, 0.02²), divided by √(2 · layers) where a part adds to the
    residual; biases 0. Raises InvalidArgument if the number of patterns or mechanisms is not the
    number of layers, and, when it is called, for a position past the learned ones.
    """

    config: GPT2Config

    def __init__(
        self,
        config: GPT2Config,
        pattern: Pattern | Sequence[Pattern] | None = None,
        *,
        mechanism: Recipe | Sequence[Recipe] | None = None,
    ) -> None:
        super().__init__(config, pattern, mechanism)
        weights = drawn(config.vocabulary, config.width, std=0.02)
        self.embedding = nn.Embedding.from_pretrained(weights, freeze=False)
        positions = drawn(config.trained_length, config.width, std=0.02)
        self.positions = nn.Embedding.from_pretrained(positions, freeze=False)
        mechanisms = self._make_mechanisms(config.attention_dropout)
        self.layers = nn.ModuleList(
            Block(config, mechanism, index=self.number(layer))
            for layer, mechanism in enumerate(mechanisms)
        )
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        if config.tied:
            self.head.weight = self.embedding.weight
        self._draw()

    @property
    def longest(self) -> int:
        return self.config.trained_length

    def hidden(
        self,
        ids: Tensor,
        *,
        q_tokens: Tokens | None = None,
        caches: Sequence[Cache] | None = None,
    ) -> Tensor:
        tokens, seen = self._advance(ids, q_tokens, caches)
        steps = [Step(tokens, k_tokens, cache) for cache, k_tokens in seen]
        x = self.embedding(ids) + self.placed(tokens)
        if self.config.first_dropout and self.training:
            x = functional.dropout(x, self.config.first_dropout)
        for group, layer in zip(self.groups, self.layers, strict=True):
            x = layer(x, steps[group])
        out: Tensor = self.norm(x)
        return out

    def placed(self, tokens: Tokens) -> Tensor:
        """The vectors of the positions, (L, width) or (B, L, width); 0 for nobody."""
        positions = tokens.encoded.to(self.positions.weight.device)
        found: Tensor = self.positions(positions.clamp(min=0))
        return found.masked_fill((positions == NOBODY).unsqueeze(-1), 0.0)

    @torch.no_grad()
    def _draw(self) -> None:
        """Weights as published. On "meta" there is nothing to draw."""
        if self.embedding.weight.is_meta:
            return
        for block in (cast(Block, layer) for layer in self.layers):
            inward = (block.attention.qkv, block.feed_forward.up)
            outward = (block.attention.out, block.feed_forward.down)
            for linear in (*inward, *outward):
                scale = math.sqrt(2 * self.config.layers) if linear in outward else 1.0
                nn.init.normal_(linear.weight, std=0.02 / scale)
                nn.init.zeros_(linear.bias)
        if not self.config.tied:
            nn.init.normal_(cast(nn.Linear, self.head).weight, std=0.02)
