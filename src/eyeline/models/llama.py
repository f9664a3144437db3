"""Llama: RMSNorm, rotary encoding, grouped heads and a gated feed-forward, through patterns.

Touvron et al. 2023. From top to bottom: the configuration and what it refuses, the names of the
weights in files, and the model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from eyeline.caches import Cache, recount
from eyeline.checks import check_sizes
from eyeline.encodings.rotary import Rotary, Tables
from eyeline.encodings.rotary_scaling import Scaling
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.layers import GatedFeedForward, LayerCache, by_rows, rms_norm
from eyeline.mechanisms import Mechanism, Recipe
from eyeline.models.base import Encodings, Form, LanguageModel, Names, Part, check_apart
from eyeline.models.config_reader import Attributes, read_rotary
from eyeline.patterns import Causal, Pattern, sliding_window
from eyeline.tokens import Tokens

# --- Configuration -------------------------------------------------------------------------------


@dataclass(frozen=True)
class LlamaConfig:
    """The sizes of a Llama. Raises InvalidArgument for sizes that do not fit together.

    trained_length: how many positions the model was trained on. Reading past it with absolute
    encodings is allowed, and the text gets worse there; recounted encodings stay inside.
    window: the sliding window that the model was trained with, in Hugging Face's meaning.
    rotary_scaling: the other speeds that it turns queries and keys with, if any.
    """

    vocabulary: int
    width: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    trained_length: int
    rotary_base: float = 10000.0
    norm_eps: float = 1e-6
    tied: bool = False
    window: int | None = None
    rotary_scaling: Scaling | None = None

    def __post_init__(self) -> None:
        check_sizes(
            vocabulary=self.vocabulary, width=self.width, hidden=self.hidden, layers=self.layers,
            heads=self.heads, kv_heads=self.kv_heads, head_dim=self.head_dim,
            trained_length=self.trained_length,
        )  # fmt: skip
        if self.heads % self.kv_heads:
            raise InvalidArgument(
                f"{self.heads} query heads cannot share {self.kv_heads} key heads evenly"
            )
        self.rotary  # noqa: B018  (refuses an odd head_dim)

    @cached_property
    def rotary(self) -> Rotary:
        """The encoding, in the layout that all weights have once they are loaded."""
        return Rotary(
            self.head_dim, base=self.rotary_base, layout="half", scaling=self.rotary_scaling
        )

    @property
    def pattern(self) -> Pattern:
        """Who looked at whom when the model was trained."""
        return Causal() if self.window is None else sliding_window(self.window)

    @staticmethod
    def from_hf(values: Mapping[str, object], there: Collection[str] = ()) -> LlamaConfig:
        """From a Hugging Face config.json. Unknown attributes raise NotSupported by name."""
        attributes = Attributes(values, model="llama")
        attributes.require("model_type", "llama", "mistral")
        trained_length = attributes.whole("max_position_embeddings", 2048)
        base, scaling = read_rotary(attributes, model="llama", trained_length=trained_length)
        width, heads = attributes.whole("hidden_size"), attributes.whole("num_attention_heads")
        window = attributes.optional("sliding_window")
        config = LlamaConfig(
            vocabulary=attributes.whole("vocab_size"),
            width=width,
            hidden=attributes.whole("intermediate_size"),
            layers=attributes.whole("num_hidden_layers"),
            heads=heads,
            kv_heads=attributes.whole("num_key_value_heads", heads),
            head_dim=attributes.whole("head_dim", width // heads),
            trained_length=trained_length,
            rotary_base=base,
            rotary_scaling=scaling,
            norm_eps=attributes.number("rms_norm_eps", 1e-6),
            tied=attributes.flag("tie_word_embeddings", False),
            window=None if window is None else _window(window),
        )
        _refuse_hf(attributes)
        return config

    @staticmethod
    def from_gguf(values: Mapping[str, object], *, tied: bool) -> LlamaConfig:
        """From GGUF metadata; tied: the file has no output matrix, so the embedding serves."""
        attributes = Attributes(values, model="llama")
        attributes.require("general.architecture", "llama")
        attributes.expect("llama.rope.scaling.type", "none")
        width = attributes.whole("llama.embedding_length")
        heads = attributes.whole("llama.attention.head_count")
        head_dim = attributes.whole("llama.attention.key_length", width // heads)
        attributes.expect("llama.attention.value_length", head_dim)
        attributes.expect("llama.rope.dimension_count", head_dim)
        window = attributes.optional("llama.attention.sliding_window")
        config = LlamaConfig(
            vocabulary=attributes.whole("llama.vocab_size"),
            width=width,
            hidden=attributes.whole("llama.feed_forward_length"),
            layers=attributes.whole("llama.block_count"),
            heads=heads,
            kv_heads=attributes.whole("llama.attention.head_count_kv", heads),
            head_dim=head_dim,
            trained_length=attributes.whole("llama.context_length"),
            rotary_base=attributes.number("llama.rope.freq_base", 10000.0),
            norm_eps=attributes.number("llama.attention.layer_norm_rms_epsilon"),
            tied=tied,
            window=None if window is None else _window(window),
        )
        attributes.harmless((), prefixes=("general.", "quantize.", "GGUF."))
        attributes.done()
        return config


# What a Hugging Face config may also say, and what changes nothing here.
_HARMLESS = frozenset({
    "architectures", "torch_dtype", "dtype", "transformers_version", "auto_map",
    "_name_or_path", "_model_name_or_path", "is_llama_config", "transformers.js_config",
    "initializer_range", "use_cache", "return_dict", "output_hidden_states", "output_attentions",
    "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "chunk_size_feed_forward",
    "id2label", "label2id", "problem_type", "task_specific_params",
})  # fmt: skip


def _refuse_hf(attributes: Attributes) -> None:
    attributes.expect("hidden_act", "silu")
    attributes.expect("attention_bias", False)
    attributes.expect("mlp_bias", False)
    attributes.expect("attention_dropout", 0.0)
    attributes.expect("pretraining_tp", 1)
    attributes.expect("rope_interleaved", False)
    attributes.expect("is_encoder_decoder", False)
    attributes.harmless(_HARMLESS)
    attributes.done()


def _window(value: object) -> int:
    return Attributes({"sliding_window": value}, model="llama").whole("sliding_window")


# --- Names ---------------------------------------------------------------------------------------


_NAMES = {
    "huggingface": (
        "model.embed_tokens model.norm lm_head model.layers.{} input_layernorm "
        "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj "
        "post_attention_layernorm mlp.gate_proj mlp.up_proj mlp.down_proj"
    ),
    "gguf": (
        "token_embd output_norm output blk.{} attn_norm attn_q attn_k attn_v attn_output "
        "ffn_norm ffn_gate ffn_up ffn_down"
    ),
}


def weight_names(config: LlamaConfig, form: Form, there: Collection[str] = ()) -> Names:
    """For each parameter of Llama the file's tensors that it consists of, stacked by rows.

    GGUF files hold queries and keys with interleaved rotary pairs; their parts say so, and
    loading brings them to the half-split layout (``half_split``).
    """
    words = _NAMES[form].split()
    (embedding, norm, head, layer, first, q, k, v, out, second, gate, up, down) = words
    pairs = (config.heads, config.kv_heads) if form == "gguf" else (0, 0)
    names = {"embedding.weight": [Part(f"{embedding}.weight")]}
    for index in range(config.layers):
        file, ours = layer.format(index), f"layers.{index}"

        def part(word: str, pairs: int = 0, file: str = file) -> Part:
            return Part(f"{file}.{word}.weight", pairs)

        names |= {
            f"{ours}.attention_norm": [part(first)],
            f"{ours}.attention.qkv.weight": [part(q, pairs[0]), part(k, pairs[1]), part(v)],
            f"{ours}.attention.out.weight": [part(out)],
            f"{ours}.feed_forward_norm": [part(second)],
            f"{ours}.feed_forward.gate_up.weight": [part(gate), part(up)],
            f"{ours}.feed_forward.down.weight": [part(down)],
        }
    names["norm"] = [Part(f"{norm}.weight")]
    if not config.tied:
        names["head.weight"] = [Part(f"{head}.weight")]
    return names


def derived(name: str) -> bool:
    """Old Hugging Face files store the rotary frequencies, which follow from the config."""
    return name.startswith("model.layers.") and name.endswith(".rotary_emb.inv_freq")


# --- Model ---------------------------------------------------------------------------------------


class Step(NamedTuple):
    """What the layers that share a pattern also share in one step.

    k_tables is None if keys are rotated before they are stored (absolute encodings).
    """

    q_tokens: Tokens
    k_tokens: Tokens
    cache: Cache | None
    q_tables: Tables
    k_tables: Tables | None


@final
class Attention(nn.Module):
    """Grouped-head attention by a mechanism, with rotary encoding: (B, L, width) → the same.

    Query, key and value projections are one matrix, in this order. index: the layer's number in the
    cache that it writes to.
    """

    def __init__(self, config: LlamaConfig, mechanism: Mechanism, *, index: int) -> None:
        super().__init__()
        self.rotary, self.index = config.rotary, index
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        self.qkv = nn.Linear(
            config.width, (config.heads + 2 * config.kv_heads) * config.head_dim, bias=False
        )
        check_apart(mechanism)
        self.mechanism = mechanism
        self.out = nn.Linear(config.heads * config.head_dim, config.width, bias=False)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        batch, length, _ = x.shape
        heads = self.qkv(x).view(batch, length, -1, self.head_dim).transpose(1, 2)
        query_key, value = heads[:, : -self.kv_heads], heads[:, -self.kv_heads :]
        seen = self._seen(x, query_key, value, step)
        out: Tensor = self.out(seen.transpose(1, 2).reshape(batch, length, -1))
        return out

    def _seen(self, x: Tensor, query_key: Tensor, value: Tensor, step: Step) -> Tensor:
        q_tokens, k_tokens = step.q_tokens, step.k_tokens
        if step.k_tables is None:
            query_key = self.rotary.rotate(query_key, step.q_tables)
            query, key = query_key[:, : self.heads], query_key[:, self.heads :]
            place = None if step.cache is None else LayerCache(step.cache, self.index)
            return self.mechanism.attend(
                query, key, value, q_tokens=q_tokens, k_tokens=k_tokens, place=place, inputs=x
            )
        query, key = query_key[:, : self.heads], query_key[:, self.heads :]
        if step.cache is not None:
            key, value, _ = step.cache.append(self.index, key, value)
        query = self.rotary.rotate(query, step.q_tables)
        key = self.rotary.rotate(key, step.k_tables)
        return self.mechanism.attend(
            query, key, value, q_tokens=q_tokens, k_tokens=k_tokens, inputs=x
        )


@final
class Block(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, config: LlamaConfig, mechanism: Mechanism, *, index: int) -> None:
        super().__init__()
        self.eps = config.norm_eps
        self.attention_norm = nn.Parameter(torch.ones(config.width))
        self.attention = Attention(config, mechanism, index=index)
        self.feed_forward_norm = nn.Parameter(torch.ones(config.width))
        self.feed_forward = GatedFeedForward(config.width, config.hidden)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        normed = by_rows(lambda row: rms_norm(row, self.attention_norm, self.eps), x)
        return by_rows(self._fed, x + self.attention(normed, step))

    def _fed(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.feed_forward(rms_norm(x, self.feed_forward_norm, self.eps))
        return out


@final
class Llama(LanguageModel):
    """The language model: ids (B, L) → logits (B, L, vocabulary).

    pattern: one for all layers, or a list with one per layer; config.pattern if not given.
    mechanism: likewise, how each layer looks; exact if not given.

    encodings: "absolute" rotates keys at their positions. "recounted" stores them unrotated and
    counts positions among the tokens that the cache has kept, so that writing can go on past the
    trained length; what it promises is in ``eyeline.caches.evicting``.

    Raises InvalidArgument if the number of patterns or mechanisms is not the number of layers,
    and NotSupported for recounted encodings with a mechanism that keeps no keys.
    """

    config: LlamaConfig

    def __init__(
        self,
        config: LlamaConfig,
        pattern: Pattern | Sequence[Pattern] | None = None,
        *,
        mechanism: Recipe | Sequence[Recipe] | None = None,
        encodings: Encodings = "absolute",
    ) -> None:
        super().__init__(config, pattern, mechanism)
        if encodings not in ("absolute", "recounted"):
            raise InvalidArgument(f'encodings={encodings!r}: "absolute" or "recounted"')
        self.encodings = encodings
        # Not nn.Embedding(…): on the meta device its normal_ imports a second's worth of modules.
        drawn = nn.init.uniform_(torch.empty(config.vocabulary, config.width), -0.03, 0.03)
        self.embedding = nn.Embedding.from_pretrained(drawn, freeze=False)
        self.layers = nn.ModuleList(
            Block(config, mechanism, index=self.number(layer))
            for layer, mechanism in enumerate(self._make_mechanisms())
        )
        self.norm = nn.Parameter(torch.ones(config.width))
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        if config.tied:
            self.head.weight = self.embedding.weight
        if encodings == "recounted":
            self._refuse_states()

    def choices(self) -> dict[str, Any]:
        return {**super().choices(), "encodings": self.encodings}

    def hidden(
        self,
        ids: Tensor,
        *,
        q_tokens: Tokens | None = None,
        caches: Sequence[Cache] | None = None,
    ) -> Tensor:
        tokens, seen = self._advance(ids, q_tokens, caches)
        steps = [self._step(tokens, k_tokens, cache) for cache, k_tokens in seen]
        x = self.embedding(ids)
        for group, layer in zip(self.groups, self.layers, strict=True):
            x = layer(x, steps[group])
        return rms_norm(x, self.norm, self.config.norm_eps)

    def _step(self, tokens: Tokens, k_tokens: Tokens, cache: Cache | None) -> Step:
        if self.encodings == "absolute":
            return Step(tokens, k_tokens, cache, self._tables(tokens.encoded), None)
        ranks = recount(tokens, k_tokens)
        tables = self._tables(ranks.query), self._tables(ranks.key)
        return Step(tokens, k_tokens, cache, *tables)

    def _tables(self, positions: Tensor) -> Tables:
        weight = self.embedding.weight
        kind = weight.device.type
        # Under autocast queries and keys have its type, and what is turned is to keep it.
        lower = torch.is_autocast_enabled(kind)
        dtype = torch.get_autocast_dtype(kind) if lower else weight.dtype
        return self.config.rotary.tables(positions.to(weight.device), dtype=dtype)

    def _refuse_states(self) -> None:
        for mechanism in self.mechanisms:
            if not mechanism.keeps_keys:
                raise NotSupported(
                    f"recounted encodings turn the keys that are kept, and {mechanism} does not "
                    "keep them as they are"
                )
