"""What every checkpoint gives, whatever file it comes from: config, named tensors, tokenizer."""

from __future__ import annotations

import importlib
import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from eyeline.errors import CheckpointError, NotSupported

if TYPE_CHECKING:
    import torch

Format = Literal["gguf", "huggingface"]


@dataclass(frozen=True)
class TensorInfo:
    """What is known of a stored tensor before it is read.

    `shape` in torch's order; `dtype` as `read` returns it; `stored` the file's own word for it
    (`Q4_1`, `BF16`); `nbytes` its size in the file, in bytes.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    stored: str
    nbytes: int


class Tensors(Mapping[str, "torch.Tensor"]):
    """Tensors by name. `info` is known at once; each tensor is read when it is asked for."""

    info: Mapping[str, TensorInfo]

    @abstractmethod
    def read(self, name: str, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The tensor on the CPU, in `dtype` or as `info[name].dtype`. Raises KeyError."""

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.read(name)

    def __contains__(self, name: object) -> bool:
        return name in self.info

    def __iter__(self) -> Iterator[str]:
        return iter(self.info)

    def __len__(self) -> int:
        return len(self.info)


@dataclass(frozen=True)
class BytePairs:
    """A byte-level BPE, as a GGUF file lists it.

    `tokens[i]` is the text of id i (bytes written as GPT-2's 256 letters), `kinds[i]` its GGUF
    token type (1 normal, 3 control, 4 user defined, ...), `merges` pairs "left right" by rank,
    `pre` the name of the rule that splits text into words first.
    """

    tokens: Sequence[str]
    kinds: Sequence[int]
    merges: Sequence[str]
    pre: str


@dataclass(frozen=True)
class TokenizerFile:
    """A tokenizer in the JSON form of the `tokenizers` library."""

    path: Path


@dataclass(frozen=True)
class TokenizerSpec:
    """All a checkpoint says of its tokenizer. `eos_ids` are the ids that end a text."""

    model: BytePairs | TokenizerFile
    bos_id: int | None
    eos_ids: tuple[int, ...]
    pad_id: int | None
    add_bos: bool
    chat_template: str | None
    special: Mapping[str, str]
    """Names that a chat template may use, such as `bos_token`, with their texts."""


@dataclass(frozen=True)
class Checkpoint:
    """A model on disk, opened but not read.

    `config` holds the file's own attributes (GGUF metadata without the tokenizer's, or
    `config.json`), `format` says which of the two.
    """

    format: Format
    config: Mapping[str, object]
    tensors: Tensors
    tokenizer: TokenizerSpec | None
    source: Path


def damaged(source: Path, what: str) -> CheckpointError:
    """The one-line error for a file that is not what it claims to be."""
    return CheckpointError(f"{source}: {what}")


def shown(name: object, *, limit: int = 60) -> str:
    """A name out of an untrusted file, fit to stand in one line of an error."""
    text = ascii(name)
    return text if len(text) <= limit else f"{text[:limit]}..."


def optional(module: str) -> Any:
    """A module of the `app` extra. Raises NotSupported with what to install where it is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise NotSupported(
            f"this needs the package {module}; install it with: pip install 'eyeline[app]'"
        ) from None


PICKLES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})


def refuse_pickle(path: Path) -> CheckpointError:
    """The error for weights in a form that can run code when it is opened."""
    return CheckpointError(
        f"{path}: pickled weights can run code when they are opened and are never loaded;"
        " convert them to safetensors, or use a model that has them"
    )


# Text and JSON out of small files that nobody vouches for.

MAX_BYTES = 1 << 26


def read_text(path: Path) -> str:
    """The text of a file. Raises CheckpointError where it is missing, over 64 MiB or not UTF-8."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise damaged(path, f"larger than {MAX_BYTES:,} bytes")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise damaged(path, "the file is missing") from None
    except UnicodeDecodeError as error:
        raise damaged(path, f"not UTF-8 at byte {error.start:,}") from None


def read_object(path: Path, *, missing_ok: bool = False) -> dict[str, object]:
    """The object in a JSON file; empty where the file is missing and may be.

    Raises CheckpointError as `read_text` does, and where it is not JSON or not an object.
    """
    if missing_ok and not path.is_file():
        return {}
    value = _json(path)
    if not isinstance(value, dict):
        raise damaged(path, f"a JSON {type(value).__name__} where an object is due")
    return value


def read_list(path: Path) -> list[object]:
    """The list in a JSON file. Raises CheckpointError as `read_object` does."""
    value = _json(path)
    if not isinstance(value, list):
        raise damaged(path, f"a JSON {type(value).__name__} where a list is due")
    return value


def _json(path: Path) -> object:
    try:
        value: object = json.loads(read_text(path))
    except ValueError as error:
        raise damaged(path, f"not JSON: {error}") from None
    except RecursionError:
        raise damaged(path, "not JSON: nested too deeply") from None
    return value
