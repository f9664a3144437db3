"""A small random GPT-2, and the files that others would write of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eyeline.models import GPT2, GPT2Config

CONFIG = GPT2Config(
    vocabulary=89, width=33, hidden=47, layers=3, heads=3, trained_length=31, norm_eps=2**-16,
    dropout=0.1, embedding_dropout=0.1, attention_dropout=0.1,
)  # fmt: skip
HF: dict[str, Any] = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 89, "n_embd": 33,
    "n_inner": 47, "n_layer": 3, "n_head": 3, "n_positions": 31, "n_ctx": 31,
    "layer_norm_epsilon": 2**-16, "activation_function": "gelu_new",
}  # fmt: skip
GGUF: dict[str, Any] = {
    "general.architecture": "gpt2", "gpt2.embedding_length": 33, "gpt2.feed_forward_length": 47,
    "gpt2.block_count": 3, "gpt2.attention.head_count": 3, "gpt2.context_length": 31,
    "gpt2.attention.layer_norm_epsilon": 2**-16,
}  # fmt: skip


def gpt2(config: GPT2Config = CONFIG, pattern: Any = None, **options: Any) -> GPT2:
    """A model with weights large enough that every part of it shows in the logits."""
    torch.manual_seed(0)
    model = GPT2(config, pattern, **options)
    for name, parameter in model.named_parameters():
        scale = "norm" in name and name.endswith("weight")
        torch.nn.init.normal_(parameter, mean=1.0 if scale else 0.0, std=0.3)
    return model.eval().requires_grad_(False)


_PLACES = {
    "attention_norm": "ln_1", "attention.qkv": "attn.c_attn", "attention.out": "attn.c_proj",
    "feed_forward_norm": "ln_2", "feed_forward.up": "mlp.c_fc", "feed_forward.down": "mlp.c_proj",
}  # fmt: skip
_ENDS = {"embedding": "wte", "positions": "wpe", "norm": "ln_f", "head": "lm_head"}


def hf_tensors(model: GPT2, prefix: str = "transformer.") -> dict[str, Tensor]:
    """The weights under Hugging Face's names, those of projections as (in, out)."""
    out = {}
    for ours, weight in model.state_dict().items():
        if ours == "head.weight" and model.config.tied:
            continue
        place, _, leaf = ours.rpartition(".")
        if place.startswith("layers."):
            _, layer, part = place.split(".", 2)
            name = f"{prefix}h.{layer}.{_PLACES[part]}.{leaf}"
            weight = weight.T if weight.dim() == 2 else weight
        else:
            name = f"{'' if place == 'head' else prefix}{_ENDS[place]}.{leaf}"
        out[name] = weight.detach().contiguous()
    return out


_GGUF_NAMES = {
    "transformer.": "", "wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm",
    "lm_head": "output", "h.": "blk.", "ln_1": "attn_norm", "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output", "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}  # fmt: skip


def save_gguf(
    path: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any] | None = None
) -> Path:
    """As llama.cpp converts: projections turned to (out, in)."""
    import gguf

    values = dict(GGUF if config is None else config)
    writer = gguf.GGUFWriter(path, values.pop("general.architecture"))
    for name, value in values.items():
        add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        add(name, value)
    for name, tensor in tensors.items():
        turned = tensor.T if ".c_" in name and tensor.dim() == 2 else tensor
        for theirs, short in _GGUF_NAMES.items():
            name = name.replace(theirs, short)
        writer.add_tensor(name, turned.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
