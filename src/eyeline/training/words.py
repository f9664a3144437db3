"""The tokenizer of a run: bytes, or a given one, and what training asks of it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from eyeline.checkpoints.base import TokenizerFile, TokenizerSpec
from eyeline.checkpoints.folder import tokenizer_spec
from eyeline.errors import InvalidArgument
from eyeline.tokenizer import ByteTokenizer, Tokenizer

TextTokenizer = Tokenizer | ByteTokenizer

BYTES = "bytes"


def tokenizer_of(name: str) -> TextTokenizer:
    """By the word "bytes", or from a tokenizer.json, or from a folder that has one."""
    if name == BYTES:
        return ByteTokenizer()
    path = Path(name)
    folder = path if path.is_dir() else path.parent
    file = folder / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise InvalidArgument(
            f"tokenizer {name}: it is {BYTES!r}, a tokenizer.json, or a folder with one"
        )
    spec = tokenizer_spec(folder, {}) if file.name == "tokenizer.json" else None
    if spec is None:
        spec = TokenizerSpec(TokenizerFile(file), None, (), None, False, None, {})
    return Tokenizer(spec, file)


def ids_of(data: bytes, tokenizer: TextTokenizer, source: str) -> Tensor:
    """The ids of a file's content, as small as they may be stored: (N,), uint8 or int32.

    Bytes are taken as they are, whatever they mean; a given tokenizer reads UTF-8.
    """
    if isinstance(tokenizer, ByteTokenizer):
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return torch.tensor(tokenizer.encode(text_of(data, source), special=False), dtype=torch.int32)


def text_of(data: bytes, source: str) -> str:
    """Bytes as text. Raises InvalidArgument with the place of what is no UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidArgument(f"{source}, line {line}: it is no UTF-8 text") from None


def mask_id(tokenizer: TextTokenizer) -> int:
    """The id that stands for a hidden token. Raises InvalidArgument if there is none."""
    known = getattr(tokenizer, "mask_id", None)
    if known is None:
        raise InvalidArgument(
            "the tokenizer has no mask token, and a masked language model needs one; "
            'train with bytes (--tokenizer bytes), or add one ("[MASK]" or "<mask>")'
        )
    return int(known)
