"""Hugging Face folders: config.json, safetensors files, and the tokenizer beside them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from eyeline.checkpoints.base import (
    PICKLES,
    Checkpoint,
    TensorInfo,
    Tensors,
    TokenizerFile,
    TokenizerSpec,
    damaged,
    optional,
    read_object,
    read_text,
    refuse_pickle,
    shown,
)
from eyeline.errors import CheckpointError

if TYPE_CHECKING:
    import torch


# The tokenizer of a Hugging Face folder: tokenizer.json and the small files about it.


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


# Hugging Face folders: config.json, and one safetensors file or several with an index.

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
# safetensors' name of a type: torch's.
_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip


def open_folder(path: Path) -> Checkpoint:
    """Open a folder as the Hugging Face hub has them. Only safetensors are read, never pickles.

    Raises CheckpointError for a file that is missing, cut short or damaged, and for shards that do
    not hold exactly what the index says.
    """
    config = read_object(path / "config.json")
    tensors = SafeTensors(_files(path))
    return Checkpoint("huggingface", config, tensors, tokenizer_spec(path, config), path)


@final
class SafeTensors(Tensors):
    """Tensors of one or several safetensors files, each read as it is stored."""

    def __init__(self, files: Mapping[Path, frozenset[str] | None]) -> None:
        """`files`: each file with the names it must hold, None for whatever is in it."""
        self.info: dict[str, TensorInfo] = {}
        self._handles: dict[str, Any] = {}
        for path, expected in files.items():
            handle = _handle(path)
            names = frozenset(handle.keys())
            if expected is not None and names != expected:
                raise _wrong_names(path, names, expected)
            for name in names:
                self.info[name] = _info(path, name, handle.get_slice(name))
                self._handles[name] = handle

    def read(self, name: str, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        info = self.info[name]
        tensor: torch.Tensor = self._handles[name].get_tensor(name)
        return tensor.to(dtype if dtype is not None else info.dtype)


def _handle(path: Path) -> Any:
    """Open one file: the library checks the header's size, its JSON and each tensor's place."""
    library = optional("safetensors")
    try:
        return library.safe_open(path, framework="pt")
    except FileNotFoundError:
        raise damaged(path, "the file is missing") from None
    except (library.SafetensorError, OSError) as error:
        reason = " ".join(str(error).split())
        raise damaged(path, f"cut short or damaged ({shown(reason, limit=120)})") from None


def _info(path: Path, name: str, view: Any) -> TensorInfo:
    import torch

    stored, shape = str(view.get_dtype()), tuple(view.get_shape())
    if stored not in _DTYPES:
        known = ", ".join(_DTYPES)
        raise CheckpointError(
            f"{path}: tensor {shown(name)} is stored as {shown(stored)}; {known} can be read"
        )
    dtype: torch.dtype = getattr(torch, _DTYPES[stored])
    return TensorInfo(shape, dtype, stored, math.prod(shape) * dtype.itemsize)


def _wrong_names(path: Path, names: frozenset[str], expected: frozenset[str]) -> CheckpointError:
    parts = [
        f"{word} {', '.join(shown(n) for n in sorted(some)[:3])}"
        + (f" and {len(some) - 3} more" if len(some) > 3 else "")
        for word, some in (("lacks", expected - names), ("also holds", names - expected))
        if some
    ]
    return damaged(path, f"not as {INDEX} says: it {' and '.join(parts)}")


def _files(folder: Path) -> dict[Path, frozenset[str] | None]:
    """The weight files of a folder, with what each must hold."""
    single, index = (folder / SINGLE).exists(), (folder / INDEX).exists()
    shards = sorted(p.name for p in folder.glob("*.safetensors") if _SHARD.fullmatch(p.name))
    if single and (index or shards):
        raise damaged(folder, f"both {SINGLE} and {INDEX if index else shards[0]}: keep one set")
    if single:
        return {folder / SINGLE: None}
    if index:
        return _indexed(folder, shards)
    if shards:
        raise damaged(folder, f"{len(shards)} shards, but {INDEX} is missing")
    raise _no_weights(folder)


def _indexed(folder: Path, shards: list[str]) -> dict[Path, frozenset[str] | None]:
    weights = read_object(folder / INDEX).get("weight_map")
    if not isinstance(weights, dict) or not weights:
        raise damaged(folder / INDEX, "it has no weight_map")
    held: dict[str, set[str]] = {}
    for name, file in weights.items():
        # A plain name: nothing outside the folder may be opened through the index.
        if not isinstance(file, str) or not re.fullmatch(r"[\w][\w.-]*\.safetensors", file):
            raise damaged(folder / INDEX, f"{shown(file)} is not the name of a safetensors file")
        held.setdefault(file, set()).add(name)
    missing = [file for file in sorted(held) if not (folder / file).is_file()]
    surplus = [file for file in shards if file not in held]
    for word, files in (("missing", missing), ("not in the index", surplus)):
        if files:
            raise damaged(folder, f"{len(files)} of its shards {word}: {', '.join(files[:3])}")
    return {folder / file: frozenset(names) for file, names in held.items()}


def _no_weights(folder: Path) -> CheckpointError:
    pickles = sorted(p.name for p in folder.iterdir() if p.suffix in PICKLES)
    if pickles:
        return refuse_pickle(folder / pickles[0])
    return CheckpointError(f"{folder}: no {SINGLE}, no {INDEX} and no .gguf file in it")
