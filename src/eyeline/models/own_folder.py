"""Reading our own folders: ``eyeline.json``, ``model.safetensors`` and the tokenizer's file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from eyeline.checkpoints.base import TokenizerFile, TokenizerSpec, read_object
from eyeline.checkpoints.folder import SafeTensors
from eyeline.errors import CheckpointError
from eyeline.models.base import Model
from eyeline.models.description import FILE, WEIGHTS, sketch
from eyeline.models.weights import fill, own_names
from eyeline.tokenizer import ByteTokenizer, Tokenizer

TOKENIZER_FILE = "tokenizer.json"
BYTES = "bytes"

AnyTokenizer = Tokenizer | ByteTokenizer


def is_own(path: Path) -> bool:
    """Whether ``saving.save`` has written there."""
    return (path / FILE).is_file()


def read_description(folder: Path) -> dict[str, Any]:
    """What ``eyeline.json`` says. Raises CheckpointError where it is missing or no JSON object."""
    return read_object(folder / FILE)


def read_model(
    folder: Path,
    *,
    changes: Mapping[str, Any],
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> Model:
    """The model as it was saved, but for ``changes`` of its choices."""
    described, source = read_description(folder), str(folder / FILE)
    tensors = SafeTensors({folder / WEIGHTS: None})
    model = sketch(described, tensors, source=source, changes=changes)
    fill(model, tensors, own_names(model), source=folder, dtype=dtype, device=device)
    return model


def tokenizer_entry(tokenizer: AnyTokenizer | None) -> object:
    """What ``eyeline.json`` says of a tokenizer, beside its file."""
    if tokenizer is None or isinstance(tokenizer, ByteTokenizer):
        return None if tokenizer is None else BYTES
    spec = tokenizer.spec
    return {
        "bos_id": spec.bos_id, "eos_ids": list(spec.eos_ids), "pad_id": spec.pad_id,
        "add_bos": spec.add_bos, "chat_template": spec.chat_template, "special": dict(spec.special),
    }  # fmt: skip


def read_tokenizer(folder: Path) -> AnyTokenizer | None:
    """The tokenizer that was saved with the model; None if there was none."""
    entry = read_description(folder).get("tokenizer")
    if entry is None or entry == BYTES:
        return None if entry is None else ByteTokenizer()
    if not isinstance(entry, dict):
        raise CheckpointError(f"{folder / FILE}: tokenizer={entry!r:.60} is not known")
    file = TokenizerFile(folder / TOKENIZER_FILE)
    if not file.path.is_file():
        raise CheckpointError(f"{file.path}: the file is missing")
    return Tokenizer(_spec(entry, file, folder / FILE), folder)


def _spec(entry: Mapping[str, Any], file: TokenizerFile, source: Path) -> TokenizerSpec:
    ids = entry.get("eos_ids", [])
    numbers = [*(ids if isinstance(ids, list) else [ids]), entry.get("bos_id"), entry.get("pad_id")]
    for number in numbers:
        if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
            raise CheckpointError(f"{source}: tokenizer: {number!r:.60} is not a token id")
    template, special = entry.get("chat_template"), entry.get("special", {})
    return TokenizerSpec(
        model=file,
        bos_id=entry.get("bos_id"),
        eos_ids=tuple(ids),
        pad_id=entry.get("pad_id"),
        add_bos=entry.get("add_bos") is True,
        chat_template=template if isinstance(template, str) else None,
        special=special if isinstance(special, dict) else {},
    )
