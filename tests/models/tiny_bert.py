"""A small random BERT, the files that others would write of it, and it written out plainly."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eyeline.models import Bert, BertClassifier, BertConfig, BertMasked
from models.tiny import save_hf

CONFIG = BertConfig(
    vocabulary=89, width=35, hidden=37, layers=3, heads=5, trained_length=23, token_types=3,
    norm_eps=2**-12, dropout=0.1, attention_dropout=0.1,
)  # fmt: skip
HF: dict[str, Any] = {
    "model_type": "bert", "vocab_size": 89, "hidden_size": 35, "intermediate_size": 37,
    "num_hidden_layers": 3, "num_attention_heads": 5, "max_position_embeddings": 23,
    "type_vocab_size": 3, "layer_norm_eps": 2**-12, "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
    "position_embedding_type": "absolute", "pad_token_id": 0, "torch_dtype": "float32",
}  # fmt: skip
KINDS: dict[str, Any] = {
    "BertModel": Bert,
    "BertForMaskedLM": BertMasked,
    "BertForSequenceClassification": BertClassifier,
}
_NAMES = {
    "embeddings.words": "embeddings.word_embeddings",
    "embeddings.positions": "embeddings.position_embeddings",
    "embeddings.types": "embeddings.token_type_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
    "blocks.": "encoder.layer.",
    "attention.q_proj": "attention.self.query",
    "attention.k_proj": "attention.self.key",
    "attention.v_proj": "attention.self.value",
    "attention.out_proj": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "feed_forward.up": "intermediate.dense",
    "feed_forward.down": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
    "pooler": "pooler.dense",
    "transform_norm": "cls.predictions.transform.LayerNorm",
    "transform.w": "cls.predictions.transform.dense.w",
    "transform.b": "cls.predictions.transform.dense.b",
}


def bert(kind: Any = Bert, config: BertConfig = CONFIG, pattern: Any = None, **options: Any) -> Any:
    """A model with weights large enough that every part of it shows in what comes out."""
    torch.manual_seed(0)
    model = kind(config, pattern, **options)
    for name, parameter in model.named_parameters():
        mean = 1.0 if "norm.weight" in name else 0.0
        torch.nn.init.normal_(parameter, mean=mean, std=0.3)
    return model.eval().requires_grad_(False)


def hf_tensors(model: Any, *, prefix: str = "") -> dict[str, Tensor]:
    """The weights under Hugging Face's names."""
    out: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        inner = name.removeprefix("bert.")
        theirs = inner
        for ours, other in _NAMES.items():
            theirs = theirs.replace(ours, other)
        if theirs.startswith("head."):
            masked = isinstance(model, BertMasked)
            theirs = theirs.replace("head", "cls.predictions" if masked else "classifier")
            if theirs == "cls.predictions.weight":
                if model.config.tied:
                    continue
                theirs = "cls.predictions.decoder.weight"
        own = inner.startswith(("embeddings", "blocks", "pooler"))
        whole = "bert." if name != inner else prefix
        out[f"{whole if own else ''}{theirs}"] = tensor.contiguous()
    return out


def save(folder: Path, model: Any, changes: Mapping[str, Any] | None = None) -> Path:
    """The folder that Hugging Face would write."""
    (named,) = (name for name, kind in KINDS.items() if type(model) is kind)
    values = {**HF, "architectures": [named], "tie_word_embeddings": model.config.tied}
    if model.config.classes is not None:
        values["id2label"] = {str(i): f"label {i}" for i in range(model.config.classes)}
    return save_hf(folder, hf_tensors(model), {**values, **(changes or {})})


def plainly(
    model: Bert, row: list[int], allows: Callable[[int, int], bool], kinds: list[int] | None = None
) -> Tensor:
    """One text, one head and one pair at a time, in float64: (L, width)."""
    config, state = model.config, {n: w.double() for n, w in model.state_dict().items()}
    length = len(row)

    def normed(x: Tensor, name: str) -> Tensor:
        spread = (x - x.mean(-1, keepdim=True)).pow(2).mean(-1, keepdim=True) + config.norm_eps
        unit = (x - x.mean(-1, keepdim=True)) / spread.sqrt()
        return unit * state[f"{name}.weight"] + state[f"{name}.bias"]

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    types = state["embeddings.types.weight"][kinds if kinds is not None else [0] * length]
    words, positions = state["embeddings.words.weight"], state["embeddings.positions.weight"]
    x = normed(words[row] + positions[:length] + types, "embeddings.norm")
    for layer in range(config.layers):
        at = f"blocks.{layer}"
        q, k, v = (
            linear(x, f"{at}.attention.{name}_proj").split(config.head_dim, -1) for name in "qkv"
        )
        seen = []
        for head in range(config.heads):
            score = q[head] @ k[head].T / math.sqrt(config.head_dim)
            for i in range(length):
                for j in range(length):
                    score[i, j] = score[i, j] if allows(i, j) else -math.inf
            seen.append(score.softmax(-1) @ v[head])
        attended = linear(torch.cat(seen, -1), f"{at}.attention.out_proj")
        x = normed(x + attended, f"{at}.attention_norm")
        inner = linear(x, f"{at}.feed_forward.up")
        inner = inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2)))
        x = normed(x + linear(inner, f"{at}.feed_forward.down"), f"{at}.feed_forward_norm")
    return x


CLASSES = replace(CONFIG, classes=7, pooler=True)
