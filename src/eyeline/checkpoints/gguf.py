"""GGUF files: tensors, the quantised ones expanded by the `gguf` library block by block."""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from eyeline.budgets import budgets
from eyeline.checkpoints.base import (
    BytePairs,
    Checkpoint,
    TensorInfo,
    Tensors,
    TokenizerSpec,
    damaged,
    optional,
    shown,
)
from eyeline.checkpoints.gguf_header import MAGIC, Header, StoredTensor, parse
from eyeline.errors import CheckpointError

if TYPE_CHECKING:
    import torch

# The tokenizer that a GGUF file describes in its keys.


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


def is_gguf(path: Path) -> bool:
    """Whether the file begins as GGUF files do."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def open_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file: read and check its header, map its data.

    Raises CheckpointError where the file is cut short, damaged, split into several files, or holds
    types of tensors that are unknown.
    """
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    header = parse(data, path)
    _refuse_split(path, header)
    config = {k: v for k, v in header.metadata.items() if not k.startswith(PREFIX)}
    tensors = GGUFTensors(path, header, data)
    return Checkpoint("gguf", config, tensors, tokenizer_spec(path, header.metadata), path)


@final
class GGUFTensors(Tensors):
    """Tensors of a GGUF file. Quantised ones are read as float32, plain ones as they are stored."""

    def __init__(self, path: Path, header: Header, data: mmap.mmap) -> None:
        self._path, self._data, self._start = path, data, header.data_start
        self._stored = {t.name: t for t in header.tensors}
        self.info: Mapping[str, TensorInfo] = {t.name: _info(path, t) for t in header.tensors}
        self._check_places(header.alignment)

    def _check_places(self, alignment: int) -> None:
        """Tensors lie within the file, aligned, and none over another."""
        free = 0
        for tensor in sorted(self._stored.values(), key=lambda t: t.offset):
            if tensor.offset < free or tensor.offset % alignment:
                raise damaged(
                    self._path,
                    f"tensor {shown(tensor.name)} cannot lie at offset {tensor.offset:,}: the next"
                    f" free place is {free:,} and the alignment {alignment}",
                )
            size = self.info[tensor.name].nbytes
            free = -(-(tensor.offset + size) // alignment) * alignment
            if self._start + free > len(self._data):
                raise damaged(
                    self._path,
                    f"tensor {shown(tensor.name)} ends at byte {self._start + free:,}, but the file"
                    f" has {len(self._data):,}: it is cut short",
                )

    def read(self, name: str, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The tensor, expanded. Raises CheckpointError for a kind of block that cannot be."""
        import numpy as np
        import torch

        info, tensor = self.info[name], self._stored[name]
        out = torch.empty(info.shape, dtype=dtype if dtype is not None else info.dtype)
        begin = self._start + tensor.offset
        raw = np.frombuffer(self._data, dtype=np.uint8, count=info.nbytes, offset=begin)
        plain = _PLAIN.get(info.stored)
        if plain is not None:
            stored = torch.from_numpy(raw.copy()).view(getattr(torch, plain))
            return out.copy_(stored.reshape(info.shape))
        try:
            _expand(raw, tensor.kind, out)
        except NotImplementedError:
            raise CheckpointError(
                f"{self._path}: tensor {shown(name)} is stored as {info.stored}, which the"
                " installed gguf library cannot expand; use a Q4, Q5, Q6, Q8, F16 or BF16 file"
            ) from None
        return out


# GGUF's name of a type that torch has too.
_PLAIN = {
    "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64",
    "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64",
}  # fmt: skip


def _info(path: Path, tensor: StoredTensor) -> TensorInfo:
    import torch

    gguf = optional("gguf")
    try:
        kind = gguf.GGMLQuantizationType(tensor.kind)
        block, nbytes = gguf.GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
        raise damaged(
            path, f"tensor {shown(tensor.name)} is stored as type {tensor.kind}, which is unknown"
        ) from None
    if tensor.shape[-1] % block:
        raise damaged(
            path,
            f"tensor {shown(tensor.name)}: rows of {tensor.shape[-1]} do not divide into"
            f" {kind.name}'s blocks of {block}",
        )
    dtype = getattr(torch, _PLAIN.get(kind.name, "float32"))
    return TensorInfo(tensor.shape, dtype, kind.name, math.prod(tensor.shape) // block * nbytes)


def _expand(raw: Any, kind: int, out: torch.Tensor) -> None:
    """Fill `out` from the quantised bytes, `budgets.expanded` numbers at a time."""
    import torch

    gguf = optional("gguf")
    quantised = gguf.GGMLQuantizationType(kind)
    block, nbytes = gguf.GGML_QUANT_SIZES[quantised]
    blocks, flat = raw.reshape(-1, nbytes), out.reshape(-1, block)
    step = budgets.expanded // block
    for begin in range(0, len(blocks), step):
        # One long row: the library works on sixteen rows at a time, whatever their length.
        row = blocks[begin : begin + step].reshape(1, -1)
        values = torch.from_numpy(gguf.dequantize(row, quantised))
        flat[begin : begin + step] = values.reshape(-1, block)


def _refuse_split(path: Path, header: Header) -> None:
    count = header.metadata.get("split.count", 0)
    if isinstance(count, int) and count > 1:
        raise CheckpointError(
            f"{path}: part {header.metadata.get('split.no')} of a model split into {count} files;"
            " join them first (llama-gguf-split --merge)"
        )
