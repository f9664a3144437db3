"""The peers, set up as their own documentation says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


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


def local_attention(block: int, back: int) -> Attend:
    """local-attention with its exact window: block · back tokens back, and the token itself."""
    attend: Attend = import_module("local_attention").LocalAttention(
        window_size=block,
        causal=True,
        look_backward=back,
        look_forward=0,
        exact_windowsize=True,
        use_rotary_pos_emb=False,
        dropout=0.0,
    )
    return attend


def flex_attention(block_mask: Any) -> Attend:
    """FlexAttention, compiled, with a mask made before."""
    module = import_module("torch.nn.attention.flex_attention")
    compiled = _compiled(module.flex_attention)
    return lambda q, k, v: compiled(q, k, v, block_mask=block_mask)


def flex_mask(mask_mod: Callable[..., Tensor], length: int, size: int, *, compiled: bool) -> Any:
    """FlexAttention's BlockMask for one length, blocks of `size`; made by compiled code or not."""
    module = import_module("torch.nn.attention.flex_attention")
    create = _compiled(module.create_block_mask) if compiled else module.create_block_mask
    return create(mask_mod, None, None, length, length, device="cpu", BLOCK_SIZE=size)


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled once for all calls, for the sizes that come."""
    return torch.compile(function, dynamic=False)
