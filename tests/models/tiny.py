"""A small random Llama, and the files that others would write of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eyeline.models import Llama, LlamaConfig

CONFIG = LlamaConfig(
    vocabulary=89, width=30, hidden=37, layers=3, heads=6, kv_heads=3, head_dim=10,
    trained_length=23, rotary_base=97.0, norm_eps=2**-16,
)  # fmt: skip
HF: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 89,
    "hidden_size": 30, "intermediate_size": 37, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 3, "head_dim": 10, "max_position_embeddings": 23, "rope_theta": 97.0,
    "rms_norm_eps": 2**-16, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
    "torch_dtype": "float32", "tie_word_embeddings": False,
}  # fmt: skip
GGUF: dict[str, Any] = {
    "general.architecture": "llama", "llama.vocab_size": 89, "llama.embedding_length": 30,
    "llama.feed_forward_length": 37, "llama.block_count": 3, "llama.attention.head_count": 6,
    "llama.attention.head_count_kv": 3, "llama.attention.key_length": 10,
    "llama.attention.value_length": 10, "llama.rope.dimension_count": 10,
    "llama.context_length": 23, "llama.rope.freq_base": 97.0,
    "llama.attention.layer_norm_rms_epsilon": 2**-16,
}  # fmt: skip


def llama(config: LlamaConfig = CONFIG, pattern: Any = None, **options: Any) -> Llama:
    """A model with weights large enough that every part of it shows in the logits."""
    torch.manual_seed(0)
    model = Llama(config, pattern, **options)
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.3)
    return model.eval().requires_grad_(False)


def ids(batch: int, length: int) -> Tensor:
    return torch.randint(0, 89, (batch, length), generator=torch.Generator().manual_seed(1))


def hf_tensors(model: Llama) -> dict[str, Tensor]:
    """The weights under Hugging Face's names, with projections apart."""
    config = model.config
    rows = [heads * config.head_dim for heads in (config.heads, config.kv_heads, config.kv_heads)]
    out = {
        "model.embed_tokens.weight": model.embedding.weight,
        "model.norm.weight": model.norm,
    }
    if not config.tied:
        out["lm_head.weight"] = model.head.weight
    state = model.state_dict()
    for layer in range(config.layers):
        ours, theirs = f"layers.{layer}.", f"model.layers.{layer}."
        qkv = state[ours + "attention.qkv.weight"].split(rows)
        gate, up = state[ours + "feed_forward.gate_up.weight"].chunk(2)
        out |= {
            theirs + "input_layernorm.weight": state[ours + "attention_norm"],
            theirs + "self_attn.q_proj.weight": qkv[0],
            theirs + "self_attn.k_proj.weight": qkv[1],
            theirs + "self_attn.v_proj.weight": qkv[2],
            theirs + "self_attn.o_proj.weight": state[ours + "attention.out.weight"],
            theirs + "post_attention_layernorm.weight": state[ours + "feed_forward_norm"],
            theirs + "mlp.gate_proj.weight": gate,
            theirs + "mlp.up_proj.weight": up,
            theirs + "mlp.down_proj.weight": state[ours + "feed_forward.down.weight"],
        }
    return {name: tensor.detach().contiguous() for name, tensor in out.items()}


def save_hf(
    folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any] | None = None
) -> Path:
    from safetensors.torch import save_file

    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(HF if config is None else config))
    save_file(
        {name: tensor.clone() for name, tensor in tensors.items()}, folder / "model.safetensors"
    )
    return folder


_GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "model.layers": "blk",
}  # fmt: skip


def save_gguf(
    path: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any] | None = None
) -> Path:
    """As llama.cpp converts: queries and keys with interleaved pairs."""
    import gguf

    values = dict(GGUF if config is None else config)
    writer = gguf.GGUFWriter(path, values.pop("general.architecture"))
    for name, value in values.items():
        add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        add(name, value)
    for name, tensor in tensors.items():
        heads = 6 if "q_proj" in name else 3 if "k_proj" in name else 0
        for theirs, short in _GGUF_NAMES.items():
            name = name.replace(theirs, short)
        writer.add_tensor(name, (interleaved(tensor, heads) if heads else tensor).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def interleaved(weight: Tensor, heads: int) -> Tensor:
    """Row j and row j + E/2 of each head become rows 2j and 2j + 1."""
    half = weight.shape[0] // heads // 2
    rows = [
        head * 2 * half + side * half + pair
        for head in range(heads)
        for pair in range(half)
        for side in range(2)
    ]
    return weight[rows].contiguous()
