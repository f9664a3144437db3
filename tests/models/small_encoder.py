"""A tiny random sentence encoder of words, saved as sentence-transformers would."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers

from models.tiny_bert import bert, save

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXT = "a the cat dog sleeps runs shares fell on monday and very old"
WORDS = [*SPECIAL, *TEXT.split()]
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Norm", "type": "sentence_transformers.models.Normalize"},
]
FILES = {
    "modules.json": MODULES,
    "1_Pooling/config.json": {
        "word_embedding_dimension": 35,
        "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": True,
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    },
    "sentence_bert_config.json": {"max_seq_length": 11, "do_lower_case": False},
    "config_sentence_transformers.json": {"__version__": {"sentence_transformers": "2.0.0"}},
    "tokenizer_config.json": {"pad_token": "[PAD]", "mask_token": "[MASK]"},
}


def write_encoder(folder: Path) -> Path:
    """The folder. Its tokenizer cuts and fills every text, as that of the real encoder does."""
    save(folder, bert())
    rules = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    rules.normalizer = tokenizers.normalizers.BertNormalizer()
    rules.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    rules.add_special_tokens(SPECIAL)
    rules.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    rules.enable_truncation(7)
    rules.enable_padding(length=7)
    rules.save(str(folder / "tokenizer.json"))
    for name, value in FILES.items():
        write_json(folder, name, value)
    return folder


def write_json(folder: Path, name: str, value: object) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(value))
