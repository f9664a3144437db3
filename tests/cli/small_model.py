"""A tiny random Llama that writes printable letters, saved as a Hugging Face folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import tokenizers

from models.tiny import CONFIG, HF, hf_tensors, llama, save_hf

END = "<|end|>"
# Byte-level BPE writes a blank as Ġ and a line's end as Ċ.
LETTERS = ["Ġ", "Ċ", *map(chr, range(33, 127))]
TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"


def write_model(folder: Path) -> Path:
    """The folder, with weights, config, tokenizer and chat template."""
    size = len(LETTERS) + 1
    model = llama(replace(CONFIG, vocabulary=size))
    save_hf(folder, hf_tensors(model), HF | {"vocab_size": size, "eos_token_id": size - 1})
    rules = tokenizers.Tokenizer(
        tokenizers.models.BPE({letter: i for i, letter in enumerate(LETTERS)}, [])
    )
    rules.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    rules.decoder = tokenizers.decoders.ByteLevel()
    rules.add_special_tokens([END])
    rules.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": END, "chat_template": TEMPLATE})
    )
    return folder
