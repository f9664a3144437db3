"""The peers, set up as their own documentation says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def transformers_model(path: Path, dtype: torch.dtype) -> Any:
    """transformers' model from the same GGUF file, its weights dequantised, with SDPA attention."""
    transformers = import_module("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(
        str(path.parent),
        gguf_file=path.name,
        dtype=dtype,
        attn_implementation="sdpa",
        quantization_config=transformers.GgufConfig(dequantize=True),
    ).eval()


def transformers_tokenizer(path: Path) -> Any:
    """transformers' tokenizer from the same GGUF file."""
    transformers = import_module("transformers")
    return transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)


def transformers_write(model: Any, ids: Sequence[int], count: int) -> list[int]:
    """Greedy writing of exactly `count` tokens by `generate`; no id ends the text."""
    model.generation_config.eos_token_id = None
    prompt = torch.tensor([ids])
    written = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=count,
        do_sample=False,
        use_cache=True,
    )
    found: list[int] = written[0, len(ids) :].tolist()
    return found


def local_attention(block: int, back: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """local-attention with its exact window: block · back tokens back, and the token itself."""
    attend: Callable[[Tensor, Tensor, Tensor], Tensor] = import_module(
        "local_attention"
    ).LocalAttention(
        window_size=block,
        causal=True,
        look_backward=back,
        look_forward=0,
        exact_windowsize=True,
        use_rotary_pos_emb=False,
        dropout=0.0,
    )
    return attend
