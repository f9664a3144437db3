"""Llama: RMSNorm, rotary encoding, grouped heads and a gated feed-forward, through patterns.

Touvron et al. 2023. From top to bottom: the configuration and what it refuses, the names of the
weights in files, and the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from eyeline.caches import Cache, cache_for, recount
from eyeline.encodings.rotary import Rotary, Tables
from eyeline.encodings.rotary_scaling import Scaling
from eyeline.errors import InvalidArgument
from eyeline.layers import GatedFeedForward, by_rows, rms_norm
from eyeline.mechanisms.exact import Exact
from eyeline.models.guard import Attributes
from eyeline.models.rotary_config import read_rotary
from eyeline.patterns import Causal, Pattern, sliding_window
from eyeline.tokens import Tokens, default_tokens

Encodings = Literal["absolute", "recounted"]


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
    def from_hf(values: Mapping[str, object]) -> LlamaConfig:
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


class Part(NamedTuple):
    """A tensor of a file. pairs: its rows hold that many heads with interleaved rotary pairs."""

    name: str
    pairs: int = 0


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


def weight_names(config: LlamaConfig, form: Literal["huggingface", "gguf"]) -> Names:
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


Names = Mapping[str, Sequence[Part]]


def half_split(weight: Tensor, heads: int) -> Tensor:
    """Rows (heads · E, …) with pairs (2j, 2j + 1) reordered to pairs (j, j + E / 2)."""
    return weight.reshape(heads, -1, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


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
    """Grouped-head attention under a pattern, with rotary encoding: (B, L, width) → the same.

    Query, key and value projections are one matrix, in this order. index: the layer's number in
    the cache that it writes to.
    """

    def __init__(self, config: LlamaConfig, pattern: Pattern, *, index: int) -> None:
        super().__init__()
        self.rotary, self.index = config.rotary, index
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        self.qkv = nn.Linear(
            config.width, (config.heads + 2 * config.kv_heads) * config.head_dim, bias=False
        )
        self.attend = Exact(pattern)
        self.out = nn.Linear(config.heads * config.head_dim, config.width, bias=False)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        batch, length, _ = x.shape
        heads = self.qkv(x).view(batch, length, -1, self.head_dim).transpose(1, 2)
        query_key, value = heads[:, : -self.kv_heads], heads[:, -self.kv_heads :]
        if step.k_tables is None:
            query_key = self.rotary.rotate(query_key, step.q_tables)
        query, key = query_key[:, : self.heads], query_key[:, self.heads :]
        if step.cache is not None:
            key, value, _ = step.cache.append(self.index, key, value)
        if step.k_tables is not None:
            query = self.rotary.rotate(query, step.q_tables)
            key = self.rotary.rotate(key, step.k_tables)
        seen = self.attend(query, key, value, q_tokens=step.q_tokens, k_tokens=step.k_tokens)
        out: Tensor = self.out(seen.transpose(1, 2).reshape(batch, length, -1))
        return out


@final
class Block(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, config: LlamaConfig, pattern: Pattern, *, index: int) -> None:
        super().__init__()
        self.eps = config.norm_eps
        self.attention_norm = nn.Parameter(torch.ones(config.width))
        self.attention = Attention(config, pattern, index=index)
        self.feed_forward_norm = nn.Parameter(torch.ones(config.width))
        self.feed_forward = GatedFeedForward(config.width, config.hidden)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        normed = by_rows(lambda row: rms_norm(row, self.attention_norm, self.eps), x)
        return by_rows(self._fed, x + self.attention(normed, step))

    def _fed(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.feed_forward(rms_norm(x, self.feed_forward_norm, self.eps))
        return out


@final
class Llama(nn.Module):
    """The language model: ids (B, L) → logits (B, L, vocabulary).

    pattern: one for all layers, or a list with one per layer; config.pattern if not given.

    encodings: "absolute" rotates keys at their positions. "recounted" stores them unrotated and
    counts positions among the tokens that the cache has kept, so that writing can go on past the
    trained length; what it promises is in ``eyeline.caches.recount``.

    Raises InvalidArgument if the number of patterns is not the number of layers.
    """

    def __init__(
        self,
        config: LlamaConfig,
        pattern: Pattern | Sequence[Pattern] | None = None,
        *,
        encodings: Encodings = "absolute",
    ) -> None:
        super().__init__()
        if encodings not in ("absolute", "recounted"):
            raise InvalidArgument(f'encodings={encodings!r}: "absolute" or "recounted"')
        self.config, self.encodings = config, encodings
        chosen = _per_layer(pattern if pattern is not None else config.pattern, config.layers)
        self.patterns = tuple(dict.fromkeys(chosen))
        self.groups = tuple(self.patterns.index(each) for each in chosen)
        # Not nn.Embedding(…): on the meta device its normal_ imports a second's worth of modules.
        drawn = nn.init.uniform_(torch.empty(config.vocabulary, config.width), -0.03, 0.03)
        self.embedding = nn.Embedding.from_pretrained(drawn, freeze=False)
        self.layers = nn.ModuleList(
            Block(config, each, index=self.groups[:layer].count(self.groups[layer]))
            for layer, each in enumerate(chosen)
        )
        self.norm = nn.Parameter(torch.ones(config.width))
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        if config.tied:
            self.head.weight = self.embedding.weight

    def new_caches(self, batch: int = 1) -> list[Cache]:
        """An empty cache for each of ``patterns``, in the embedding's dtype and on its device."""
        return [
            cache_for(
                pattern,
                layers=self.groups.count(group),
                batch=batch,
                num_kv_heads=self.config.kv_heads,
                head_dim=self.config.head_dim,
                dtype=self.embedding.weight.dtype,
                device=self.embedding.weight.device,
            )
            for group, pattern in enumerate(self.patterns)
        ]

    def forward(
        self,
        ids: Tensor,
        *,
        q_tokens: Tokens | None = None,
        caches: Sequence[Cache] | None = None,
        last_only: bool = False,
    ) -> Tensor:
        """Logits of the token after each one: (B, L, vocabulary), or (B, 1, vocabulary).

        q_tokens: where the ids stand; the positions that follow the caches if not given.
        caches: from ``new_caches``, to read a text in steps. last_only: only for the last id.
        """
        hidden = self.hidden(ids, q_tokens=q_tokens, caches=caches)
        logits: Tensor = self.head(hidden[:, -1:] if last_only else hidden)
        return logits

    def hidden(
        self,
        ids: Tensor,
        *,
        q_tokens: Tokens | None = None,
        caches: Sequence[Cache] | None = None,
    ) -> Tensor:
        """What the head is applied to: (B, L, width)."""
        steps = self._steps(ids, q_tokens, caches)
        x = self.embedding(ids)
        for group, layer in zip(self.groups, self.layers, strict=True):
            x = layer(x, steps[group])
        return rms_norm(x, self.norm, self.config.norm_eps)

    def losses(self, ids: Tensor, *, q_tokens: Tokens | None = None, chunk: int = 256) -> Tensor:
        """-log p(id i + 1 | ids up to i), in nats: (B, L) → float32 (B, L - 1).

        Logits are made for ``chunk`` positions at a time. The exponential of the mean is the
        perplexity.
        """
        hidden = self.hidden(ids, q_tokens=q_tokens)[:, :-1]
        pieces = [
            functional.cross_entropy(
                self.head(hidden[:, start : start + chunk]).float().transpose(1, 2),
                ids[:, 1 + start : 1 + start + chunk][:, : hidden.shape[1] - start],
                reduction="none",
            )
            for start in range(0, hidden.shape[1], chunk)
        ]
        return torch.cat(pieces, 1) if pieces else hidden.new_zeros(ids.shape[0], 0).float()

    def _steps(
        self, ids: Tensor, q_tokens: Tokens | None, caches: Sequence[Cache] | None
    ) -> list[Step]:
        if ids.dim() != 2 or ids.dtype not in (torch.int64, torch.int32):
            raise InvalidArgument(f"ids must be whole numbers (B, L), got {_named(ids)}")
        if caches is not None and len(caches) != len(self.patterns):
            raise InvalidArgument(
                f"{len(caches)} caches for {len(self.patterns)} patterns: use model.new_caches()"
            )
        position = caches[0].position if caches else 0
        tokens = q_tokens if q_tokens is not None else _following(position, ids.shape[1])
        if tokens.length != ids.shape[1] or tokens.batch not in (None, ids.shape[0]):
            raise InvalidArgument(
                f"q_tokens {tuple(tokens.positions.shape)} for ids {tuple(ids.shape)}"
            )
        each = caches if caches is not None else [None] * len(self.patterns)
        return [self._step(tokens, cache) for cache in each]

    def _step(self, tokens: Tokens, cache: Cache | None) -> Step:
        seen = cache.advance(tokens) if cache is not None else tokens
        if self.encodings == "absolute":
            return Step(tokens, seen, cache, self._tables(tokens.positions), None)
        ranks = recount(tokens, seen)
        return Step(tokens, seen, cache, self._tables(ranks.query), self._tables(ranks.key))

    def _tables(self, positions: Tensor) -> Tables:
        weight = self.embedding.weight
        return self.config.rotary.tables(positions.to(weight.device), dtype=weight.dtype)


def _per_layer(pattern: Pattern | Sequence[Pattern], layers: int) -> list[Pattern]:
    if isinstance(pattern, Pattern):
        return [pattern] * layers
    if len(pattern) != layers:
        raise InvalidArgument(f"{len(pattern)} patterns for {layers} layers: one, or one each")
    return list(pattern)


def _following(position: int | Tensor, count: int) -> Tokens:
    if isinstance(position, Tensor):
        return Tokens(position + torch.arange(count))
    # From the start, the very tokens that attention assumes, so that plans are shared.
    return (
        default_tokens(count, count)[0]
        if position == 0
        else Tokens.arange(position, position + count)
    )


def _named(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"
