"""Small model files, made here."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

WORDS = ["<|end|>", "a", "b", "c", "Ġ", "ab", "Ġa", "Ċ"]
KINDS = [3, 1, 1, 1, 1, 1, 1, 1]
MERGES = ["a b", "Ġ a"]
QUANTISED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q6_K", "BF16")


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def write_gguf(path: Path, *, kinds: tuple[str, ...] = ("Q4_1", "Q8_0")) -> Path:
    """A tiny file with a tokenizer, plain tensors, and one tensor for each kind of block."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_rope_freq_base(1e5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(WORDS)
    writer.add_token_types(KINDS)
    writer.add_token_merges(MERGES)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}")
    writer.add_tensor("plain", numbers(3, 5))
    writer.add_tensor("half", numbers(7, seed=1).astype(np.float16))
    for kind in kinds:
        quantised = gguf.GGMLQuantizationType[kind]
        width = 256 if kind.endswith("_K") else 64
        data = _quantise(numbers(3, width, seed=2), quantised)
        writer.add_tensor(kind, data, raw_dtype=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _quantise(values: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    try:
        return gguf.quants.quantize(values, kind)
    except NotImplementedError:  # any bytes are some blocks; the scales must be finite
        block, size = gguf.GGML_QUANT_SIZES[kind]
        shape = (values.shape[0], values.shape[1] // block * size)
        return np.random.default_rng(3).integers(0, 60, shape, dtype=np.uint8)


TENSORS = {
    "first.weight": torch.arange(15, dtype=torch.float32).reshape(3, 5),
    "second.weight": torch.arange(7, dtype=torch.bfloat16),
    "third.weight": torch.arange(11, dtype=torch.float16) / 4,
}


def write_folder(folder: Path, *, shards: int = 1) -> Path:
    """A Hugging Face folder with the tensors above in one file, or in `shards` with an index."""
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama", "eos_token_id": [0, 2]}')
    if shards == 1:
        save_file(TENSORS, folder / "model.safetensors")
        return folder
    weights = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = dict(list(TENSORS.items())[shard::shards])
        save_file(part, folder / file)
        weights |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": weights}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
