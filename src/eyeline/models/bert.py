"""BERT: tokens that look both ways, post-norm blocks, learned positions, and what it is used for.

Devlin et al. 2019. From top to bottom: the configuration and what it refuses, the names of the
weights in files, the encoder, and two models on top of it: words that are left out, and classes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from eyeline.checks import check_below, check_number, check_sizes, probability
from eyeline.encodings import Learned
from eyeline.errors import CheckpointError, InvalidArgument, NotSupported
from eyeline.layers import Block, FeedForward, MultiHeadAttention
from eyeline.layers.checks import check_tokens
from eyeline.layers.feedforward import ACTIVATIONS, Activation
from eyeline.mechanisms import Recipe
from eyeline.models.base import (
    Form,
    Model,
    Names,
    Part,
    check_heads,
    check_ids,
    drawn,
    made,
    per_layer,
)
from eyeline.models.config_reader import Attributes
from eyeline.models.pooling import Pooling, pooled
from eyeline.patterns import Full, Pattern
from eyeline.tokens import Tokens, default_tokens

NOT_ASKED = -100
"""The target of a token that a masked model is not asked for, as in torch's cross_entropy."""


# --- Configuration -------------------------------------------------------------------------------


@dataclass(frozen=True)
class BertConfig:
    """The sizes of a BERT. Raises InvalidArgument for sizes that do not fit together.

    trained_length: how many positions there are; a longer text is refused. token_types: kinds of
    segments. dropout: of embeddings and of what is added to the residual; attention_dropout: of
    weights, which takes much longer; both while training. pooler: whether there is a layer above
    the first token. tied: a masked model's head is the embedding. classes: those of a classifier.
    """

    vocabulary: int
    width: int
    hidden: int
    layers: int
    heads: int
    trained_length: int
    token_types: int = 2
    activation: Activation = "gelu"
    norm_eps: float = 1e-12
    dropout: float = 0.0
    attention_dropout: float = 0.0
    pooler: bool = False
    tied: bool = True
    classes: int | None = None

    def __post_init__(self) -> None:
        sizes = ("vocabulary", "width", "hidden", "layers", "heads", "trained_length")
        check_sizes(**{name: getattr(self, name) for name in (*sizes, "token_types")})
        check_sizes(classes=self.classes if self.classes is not None else 1)
        check_heads(self.width, self.heads)
        check_number("norm_eps", self.norm_eps)
        probability("dropout", self.dropout)
        probability("attention_dropout", self.attention_dropout)

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values: each query head has its own."""
        return self.heads

    @property
    def head_dim(self) -> int:
        """The width of a head."""
        return self.width // self.heads

    @property
    def pattern(self) -> Pattern:
        """Who looked at whom when the model was trained."""
        return Full()

    @staticmethod
    def from_hf(values: Mapping[str, object], there: Collection[str] = ()) -> BertConfig:
        """From a Hugging Face config.json. Unknown attributes raise NotSupported by name.

        there: the names of the file's tensors, which alone say whether it has a pooler, and how
        many classes are told only by the labels' names.
        """
        attributes = Attributes(values, model="bert")
        attributes.require("model_type", "bert")
        _check_architectures(attributes.optional("architectures"))
        dropout = attributes.probability("hidden_dropout_prob", 0.1)
        config = BertConfig(
            vocabulary=attributes.whole("vocab_size"),
            width=attributes.whole("hidden_size"),
            hidden=attributes.whole("intermediate_size"),
            layers=attributes.whole("num_hidden_layers"),
            heads=attributes.whole("num_attention_heads"),
            trained_length=attributes.whole("max_position_embeddings", 512),
            token_types=attributes.whole("type_vocab_size", 2),
            activation=_activation(attributes.optional("hidden_act")),
            norm_eps=attributes.number("layer_norm_eps", 1e-12),
            dropout=dropout,
            attention_dropout=attributes.probability("attention_probs_dropout_prob", 0.1),
            pooler=any(name.endswith("pooler.dense.weight") for name in there),
            tied=attributes.flag("tie_word_embeddings", True),
            classes=_classes(attributes, there),
        )
        attributes.expect("classifier_dropout", None, dropout)
        _refuse_hf(attributes)
        return config


_ACTIVATIONS: dict[object, Activation] = {
    "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu", "silu": "silu", "swish": "silu",
}  # fmt: skip
_ARCHITECTURES = (
    "BertModel", "BertForMaskedLM", "BertForPreTraining", "BertForSequenceClassification",
)  # fmt: skip
# What a Hugging Face config may also say, and what changes nothing here.
_HARMLESS = frozenset({
    "torch_dtype", "dtype", "transformers_version", "_name_or_path", "initializer_range",
    "gradient_checkpointing", "use_cache", "return_dict", "output_hidden_states",
    "output_attentions", "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id",
    "chunk_size_feed_forward", "id2label", "label2id", "problem_type", "task_specific_params",
    "finetuning_task", "language", "name", "attn_implementation", "_attn_implementation_autoset",
    # Left over from the first release of the multilingual models; nothing has ever read them.
    "directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
    "pooler_size_per_head", "pooler_type",
})  # fmt: skip


def _refuse_hf(attributes: Attributes) -> None:
    attributes.expect("position_embedding_type", "absolute")
    attributes.expect("is_decoder", False)
    attributes.expect("is_encoder_decoder", False)
    attributes.expect("add_cross_attention", False)
    attributes.expect("cross_attention_hidden_size", None)
    attributes.expect("pruned_heads", None, {})
    attributes.harmless(_HARMLESS)
    attributes.done()


def _check_architectures(value: object) -> None:
    if value is None or (isinstance(value, list) and all(x in _ARCHITECTURES for x in value)):
        return
    known = ", ".join(_ARCHITECTURES)
    raise NotSupported(f"bert: architectures={value!r:.80} are not built yet; {known} are")


def _activation(value: object) -> Activation:
    value = value if value is not None else "gelu"
    if not isinstance(value, str) or value not in _ACTIVATIONS:
        known = ", ".join(str(name) for name in _ACTIVATIONS)
        raise NotSupported(f"bert: hidden_act={value!r:.60} is not built yet; {known} are")
    return _ACTIVATIONS[value]


def _classes(attributes: Attributes, there: Collection[str]) -> int | None:
    """The number of labels, which Hugging Face leaves out where it is 2."""
    labels, number = attributes.optional("id2label"), attributes.optional("num_labels")
    if "classifier.weight" not in there:
        return None
    found = len(labels) if isinstance(labels, dict) else number if number is not None else 2
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise CheckpointError(f"bert: num_labels={found!r:.60}, not a whole number above 0")
    return found


# --- Names ---------------------------------------------------------------------------------------

_EMBEDDINGS = {
    "words": "word_embeddings",
    "positions": "position_embeddings",
    "types": "token_type_embeddings",
    "norm": "LayerNorm",
}
_BLOCK = {
    "attention.q_proj": "attention.self.query",
    "attention.k_proj": "attention.self.key",
    "attention.v_proj": "attention.self.value",
    "attention.out_proj": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "feed_forward.up": "intermediate.dense",
    "feed_forward.down": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}


def weight_names(config: BertConfig, form: Form, there: Collection[str] = ()) -> Names:
    """For each parameter of Bert the tensor of a Hugging Face file: with or without "bert."."""
    return _spelled(_encoder(config, there), there)


def masked_names(config: BertConfig, form: Form, there: Collection[str] = ()) -> Names:
    """As ``weight_names``, for BertMasked."""
    head = "cls.predictions"
    names = {f"bert.{ours}": theirs for ours, theirs in _encoder(config, there).items()}
    names |= _both("transform", f"{head}.transform.dense")
    names |= _both("transform_norm", f"{head}.transform.LayerNorm")
    # Where the bias has both names, the decoder's is the one that counts.
    biases = (f"{head}.decoder.bias", f"{head}.bias")
    names["head.bias"] = biases[0] if biases[0] in there else biases[1]
    if not config.tied:
        names["head.weight"] = f"{head}.decoder.weight"
    return _spelled(names, there)


def classifier_names(config: BertConfig, form: Form, there: Collection[str] = ()) -> Names:
    """As ``weight_names``, for BertClassifier."""
    names = {f"bert.{ours}": theirs for ours, theirs in _encoder(config, there).items()}
    return _spelled(names | _both("head", "classifier"), there)


def derived(name: str) -> bool:
    """Tensors of files that follow from the rest, or belong to what is left out on purpose.

    position_ids counts 0, 1, …; the head's bias has two names; the head that tells whether two
    sentences follow each other, of the first training, has no place in these models.
    """
    return name.endswith("embeddings.position_ids") or name.startswith(
        ("cls.predictions.bias", "cls.predictions.decoder.bias", "cls.seq_relationship.")
    )


def _encoder(config: BertConfig, there: Collection[str]) -> dict[str, str]:
    prefix = "bert." if any(name.startswith("bert.") for name in there) else ""
    names: dict[str, str] = {}
    for ours, theirs in _EMBEDDINGS.items():
        names |= _both(f"embeddings.{ours}", f"{prefix}embeddings.{theirs}")
    for layer in range(config.layers):
        for ours, theirs in _BLOCK.items():
            names |= _both(f"blocks.{layer}.{ours}", f"{prefix}encoder.layer.{layer}.{theirs}")
    if config.pooler:
        names |= _both("pooler", f"{prefix}pooler.dense")
    # Tables have no bias.
    return {x: theirs for x, theirs in names.items() if not theirs.endswith("_embeddings.bias")}


def _both(ours: str, theirs: str) -> dict[str, str]:
    return {f"{ours}.{kind}": f"{theirs}.{kind}" for kind in ("weight", "bias")}


def _spelled(names: Mapping[str, str], there: Collection[str]) -> Names:
    """The names as the file spells them: norms of the first files have a gamma and a beta."""
    old = any(name.endswith("LayerNorm.gamma") for name in there)
    return {ours: [Part(_old(theirs) if old else theirs)] for ours, theirs in names.items()}


def _old(name: str) -> str:
    name = re.sub(r"LayerNorm\.weight$", "LayerNorm.gamma", name)
    return re.sub(r"LayerNorm\.bias$", "LayerNorm.beta", name)


# --- Encoder -------------------------------------------------------------------------------------


@final
class Embeddings(nn.Module):
    """norm(word + position + type): ids (B, L) → (B, L, width)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.words = _table(config.vocabulary, config.width)
        self.positions = Learned(config.trained_length, config.width)
        self.types = _table(config.token_types, config.width)
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, ids: Tensor, tokens: Tokens, token_types: Tensor | None) -> Tensor:
        where = tokens.encoded.to(ids.device)
        kinds = self.types.weight[0] if token_types is None else self.types(token_types)
        out: Tensor = self.dropout(self.norm(self.words(ids) + self.positions(where) + kinds))
        return out


@final
class Bert(Model):
    """The encoder: ids (B, L) → a vector for each token, (B, L, width), that has seen both sides.

    x = norm(word + position + type);  x ← norm(x + attention(x)), x ← norm(x + feed_forward(x))
    in each layer. Positions are learned: there are config.trained_length of them.

    pattern, mechanism: one for all layers, or a list with one per layer; Full() and exact if not
    given. Packed documents are apart, and positions begin at 0 in each.

    Raises InvalidArgument for a number of patterns or mechanisms that is not that of the layers.
    """

    config: BertConfig

    def __init__(
        self,
        config: BertConfig,
        pattern: Pattern | Sequence[Pattern] | None = None,
        *,
        mechanism: Recipe | Sequence[Recipe] | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.patterns: tuple[Pattern, ...] = tuple(
            per_layer("patterns", pattern, config.layers, default=config.pattern)
        )
        self.recipes: tuple[Recipe, ...] = tuple(
            per_layer("mechanisms", mechanism, config.layers, default=Recipe())
        )
        self.embeddings = Embeddings(config)
        kinds = zip(self.patterns, self.recipes, strict=True)
        self.blocks = nn.ModuleList(_block(config, *kind) for kind in kinds)
        self.pooler = _linear(config.width, config.width) if config.pooler else None

    @property
    def embedding(self) -> nn.Embedding:
        """The table of words."""
        return self.embeddings.words

    def choices(self) -> dict[str, Any]:
        return {"pattern": self.patterns, "mechanism": self.recipes}

    def forward(
        self, ids: Tensor, *, q_tokens: Tokens | None = None, token_types: Tensor | None = None
    ) -> Tensor:
        """As ``hidden``."""
        return self.hidden(ids, q_tokens=q_tokens, token_types=token_types)

    def hidden(
        self, ids: Tensor, *, q_tokens: Tokens | None = None, token_types: Tensor | None = None
    ) -> Tensor:
        """What the last layer makes of each token: (B, L, width).

        q_tokens: who stands in each slot; 0 … L - 1 if not given. Nobody is seen by anybody, and
        what comes out there means nothing. token_types (B, L): the segment of each token, 0 if
        not given.

        Raises InvalidArgument for ids that the vocabulary lacks, and a text that is longer than
        the positions that there are.
        """
        tokens = _standing(ids, q_tokens, self.config)
        if token_types is not None:
            _check_types(token_types, ids, self.config)
        x: Tensor = self.embeddings(ids, tokens, token_types)
        for block in self.blocks:
            x = block(x, q_tokens=tokens)
        return x

    def pool(self, hidden: Tensor, tokens: Tokens | None = None, how: Pooling = "cls") -> Tensor:
        """tanh(W pooled(hidden) + b): (B, L, width) → (B, width), of the first token by default.

        Raises NotSupported where the model has no pooler.
        """
        if self.pooler is None:
            raise NotSupported("this BERT has no pooler (pooler=True makes one): use pooled()")
        out: Tensor = torch.tanh(self.pooler(pooled(hidden, tokens, how)))
        return out


def _block(config: BertConfig, pattern: Pattern, recipe: Recipe) -> Block:
    looks = made(recipe, pattern, config, dropout=config.attention_dropout)
    attention = MultiHeadAttention(config.width, config.heads, mechanism=looks)
    feed_forward = FeedForward(config.width, config.hidden, activation=config.activation)
    each = (attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj)
    for linear in (*each, feed_forward.up, feed_forward.down):
        _draw(linear)
    return Block(
        attention,
        feed_forward,
        norm="post",
        make_norm=partial(nn.LayerNorm, eps=config.norm_eps),
        dropout=config.dropout,
    )


# --- What stands on it ---------------------------------------------------------------------------


@final
class BertMasked(Model):
    """What stood where a token was left out: ids (B, L) → logits (B, L, vocabulary).

    logits = W norm(f(W_t h + b_t)) + b for the encoder's h; W is the table of words if
    config.tied. pattern, mechanism: as for ``Bert``.
    """

    config: BertConfig

    def __init__(
        self,
        config: BertConfig,
        pattern: Pattern | Sequence[Pattern] | None = None,
        *,
        mechanism: Recipe | Sequence[Recipe] | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.bert = Bert(config, pattern, mechanism=mechanism)
        self.transform = _linear(config.width, config.width)
        self.transform_norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.head = _linear(config.width, config.vocabulary)
        if config.tied:
            self.head.weight = self.bert.embeddings.words.weight

    @property
    def embedding(self) -> nn.Embedding:
        """The table of words."""
        return self.bert.embedding

    def choices(self) -> dict[str, Any]:
        return self.bert.choices()

    def forward(
        self, ids: Tensor, *, q_tokens: Tokens | None = None, token_types: Tensor | None = None
    ) -> Tensor:
        """The logits of every token. Arguments as for ``Bert.hidden``."""
        return self._logits(self.hidden(ids, q_tokens=q_tokens, token_types=token_types))

    def hidden(
        self, ids: Tensor, *, q_tokens: Tokens | None = None, token_types: Tensor | None = None
    ) -> Tensor:
        """What the encoder makes of each token: (B, L, width)."""
        return self.bert.hidden(ids, q_tokens=q_tokens, token_types=token_types)

    def losses(
        self,
        ids: Tensor,
        targets: Tensor,
        *,
        q_tokens: Tokens | None = None,
        token_types: Tensor | None = None,
        chunk: int = 1024,
    ) -> Tensor:
        """-log p(target), in nats, of the n targets that are not -100, row by row: float32 (n,).

        ids: the text with some tokens left out or changed; targets (B, L): what stood there.
        Logits are made only where something is asked, ``chunk`` at a time.

        Raises InvalidArgument for targets of another shape or outside the vocabulary.
        """
        _check_targets(targets, ids, self.config)
        asked = targets != NOT_ASKED
        hidden = self.hidden(ids, q_tokens=q_tokens, token_types=token_types)[asked]
        pieces = [
            functional.cross_entropy(self._logits(h).float(), target, reduction="none")
            for h, target in zip(
                hidden.split(chunk), targets[asked].long().split(chunk), strict=True
            )
        ]
        return torch.cat(pieces)

    def _logits(self, hidden: Tensor) -> Tensor:
        act = ACTIVATIONS[self.config.activation]
        out: Tensor = self.head(self.transform_norm(act(self.transform(hidden))))
        return out


@final
class BertClassifier(Model):
    """The class of a text: ids (B, L) → logits (B, config.classes).

    logits = W tanh(W_p p + b_p) + b, p the vector of the first token, or another pooling of the
    encoder's vectors. pattern, mechanism: as for ``Bert``. There is always a pooler.

    Raises InvalidArgument if config does not say how many classes there are.
    """

    config: BertConfig

    def __init__(
        self,
        config: BertConfig,
        pattern: Pattern | Sequence[Pattern] | None = None,
        *,
        mechanism: Recipe | Sequence[Recipe] | None = None,
        pooling: Pooling = "cls",
    ) -> None:
        super().__init__()
        if config.classes is None:
            raise InvalidArgument("a classifier needs config.classes, the number of them")
        self.config, self.pooling = replace(config, pooler=True), pooling
        self.bert = Bert(self.config, pattern, mechanism=mechanism)
        self.dropout = nn.Dropout(config.dropout)
        self.head = _linear(config.width, config.classes)

    @property
    def embedding(self) -> nn.Embedding:
        """The table of words."""
        return self.bert.embedding

    def choices(self) -> dict[str, Any]:
        return {**self.bert.choices(), "pooling": self.pooling}

    def forward(
        self, ids: Tensor, *, q_tokens: Tokens | None = None, token_types: Tensor | None = None
    ) -> Tensor:
        """The logits of each text's classes. Arguments as for ``Bert.hidden``."""
        hidden = self.hidden(ids, q_tokens=q_tokens, token_types=token_types)
        out: Tensor = self.head(self.dropout(self.bert.pool(hidden, q_tokens, self.pooling)))
        return out

    def hidden(
        self, ids: Tensor, *, q_tokens: Tokens | None = None, token_types: Tensor | None = None
    ) -> Tensor:
        """What the encoder makes of each token: (B, L, width)."""
        return self.bert.hidden(ids, q_tokens=q_tokens, token_types=token_types)


# --- Weights to start with, and what is given, checked -------------------------------------------

_STD = 0.02


def _draw(linear: nn.Linear) -> nn.Linear:
    """The weight as N(0, 0.02²), the bias as 0, as BERT's authors drew them."""
    # On the meta device normal_ would import a second's worth of modules, for nothing.
    if not linear.weight.is_meta:
        nn.init.normal_(linear.weight, std=_STD)
        nn.init.zeros_(linear.bias)
    return linear


def _linear(width: int, out: int) -> nn.Linear:
    return _draw(nn.Linear(width, out))


def _table(rows: int, width: int) -> nn.Embedding:
    made: nn.Embedding = nn.Embedding.from_pretrained(drawn(rows, width, std=_STD), freeze=False)
    return made


def _standing(ids: Tensor, tokens: Tokens | None, config: BertConfig) -> Tokens:
    """The tokens of ids (B, L); 0 … L - 1 if they are not given."""
    check_ids(ids, config.vocabulary)
    if tokens is None:
        return default_tokens(ids.shape[1], ids.shape[1])[0]
    check_tokens("q_tokens", tokens, *ids.shape)
    return tokens


def _check_types(token_types: Tensor, ids: Tensor, config: BertConfig) -> None:
    if token_types.shape != ids.shape:
        raise InvalidArgument(
            f"token_types {tuple(token_types.shape)} for ids {tuple(ids.shape)}: one each"
        )
    remedy = f"there are {config.token_types} token types"
    check_below("token type", token_types, config.token_types, least=0, remedy=remedy)


def _check_targets(targets: Tensor, ids: Tensor, config: BertConfig) -> None:
    if targets.shape != ids.shape:
        raise InvalidArgument(
            f"targets {tuple(targets.shape)} for ids {tuple(ids.shape)}: one each, "
            f"{NOT_ASKED} where nothing is asked"
        )
    asked = targets.masked_fill(targets == NOT_ASKED, 0)
    remedy = f"{NOT_ASKED} is not asked, the vocabulary has {config.vocabulary:,}"
    check_below("target", asked, config.vocabulary, least=0, remedy=remedy)
