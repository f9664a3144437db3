"""The tokenizer that a GGUF file describes in its keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eyeline.checkpoints.base import BytePairs, TokenizerSpec, damaged, shown
from eyeline.errors import CheckpointError

PREFIX = "tokenizer."


def tokenizer_spec(path: Path, metadata: Mapping[str, object]) -> TokenizerSpec | None:
    """The tokenizer's description, or None where the file has none."""
    fields = {
        key.removeprefix("tokenizer.ggml."): value
        for key, value in metadata.items()
        if key.startswith(PREFIX)
    }
    model = fields.get("model")
    if model is None:
        return None
    if model != "gpt2":
        raise CheckpointError(
            f"{path}: tokenizer model {shown(model)} is not built yet; 'gpt2' (byte-level BPE) is"
        )
    pairs = _byte_pairs(path, fields)
    ends = [_token_id(path, fields, pairs, f"{name}_token_id") for name in ("eos", "eot", "eom")]
    bos = _token_id(path, fields, pairs, "bos_token_id")
    template = fields.get("tokenizer.chat_template")
    return TokenizerSpec(
        model=pairs,
        bos_id=bos,
        eos_ids=tuple(dict.fromkeys(i for i in ends if i is not None)),
        pad_id=_token_id(path, fields, pairs, "padding_token_id"),
        add_bos=fields.get("add_bos_token", False) is True,
        chat_template=template if isinstance(template, str) else None,
        special=_special(pairs, {"bos_token": bos, "eos_token": ends[0]}),
    )


def _byte_pairs(path: Path, fields: Mapping[str, object]) -> BytePairs:
    tokens = _listed(path, fields, "tokens", str)
    merges = _listed(path, fields, "merges", str)
    kinds = (
        _listed(path, fields, "token_type", int) if "token_type" in fields else [1] * len(tokens)
    )
    if len(kinds) != len(tokens):
        raise damaged(path, f"{len(tokens):,} tokens but {len(kinds):,} token types")
    return BytePairs(tokens, kinds, merges, str(fields.get("pre", "default")))


def _listed(path: Path, fields: Mapping[str, object], name: str, kind: type) -> Sequence[Any]:
    values = fields.get(name)
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise damaged(path, f"tokenizer.ggml.{name} is not a list")
    if len(values) == 0 or not isinstance(values[0], kind):
        raise damaged(path, f"tokenizer.ggml.{name} holds no {kind.__name__}")
    return values


def _token_id(path: Path, fields: Mapping[str, object], pairs: BytePairs, name: str) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or not 0 <= value < len(pairs.tokens):
        raise damaged(path, f"{name} is {value!r}, but the ids are 0 to {len(pairs.tokens) - 1:,}")
    return value


def _special(pairs: BytePairs, ids: Mapping[str, int | None]) -> dict[str, str]:
    return {name: pairs.tokens[index] for name, index in ids.items() if index is not None}
