"""The tokenizer of a Hugging Face folder: tokenizer.json and the small files about it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from eyeline.checkpoints.base import TokenizerFile, TokenizerSpec, damaged, shown
from eyeline.checkpoints.small_file import read_object, read_text


def tokenizer_spec(folder: Path, config: Mapping[str, object]) -> TokenizerSpec | None:
    """The description of the tokenizer, or None where the folder has no tokenizer.json."""
    if not (folder / "tokenizer.json").is_file():
        return None
    told = read_object(folder / "tokenizer_config.json", missing_ok=True)
    generation = read_object(folder / "generation_config.json", missing_ok=True)
    special = {
        name: text
        for name in ("bos_token", "eos_token", "pad_token", "unk_token", "mask_token")
        if (text := _token_text(told.get(name))) is not None
    }
    bos = _ids(folder, config.get("bos_token_id"))
    pad = _ids(folder, config.get("pad_token_id"))
    ends = generation.get("eos_token_id", config.get("eos_token_id"))
    return TokenizerSpec(
        model=TokenizerFile(folder / "tokenizer.json"),
        bos_id=bos[0] if bos else None,
        eos_ids=_ids(folder, ends),
        pad_id=pad[0] if pad else None,
        add_bos=told.get("add_bos_token") is True,
        chat_template=_chat_template(folder, told),
        special=special,
    )


def _token_text(value: object) -> str | None:
    """A token is written as its text, or as an object with the text under "content"."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _ids(folder: Path, value: object) -> tuple[int, ...]:
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise damaged(folder, f"{shown(value)} is not a token id or a list of them")
    return tuple(ids)


def _chat_template(folder: Path, told: Mapping[str, object]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return read_text(file)
    template = told.get("chat_template")
    if isinstance(template, list):
        named = [t.get("template") for t in template if isinstance(t, dict)]
        template = named[0] if named else None
    return template if isinstance(template, str) else None
