"""From a name or a path to a model that can write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from eyeline import checkpoints
from eyeline.checkpoints.base import Checkpoint
from eyeline.checkpoints.fetch import Progress
from eyeline.checkpoints.resolve import resolve
from eyeline.errors import CheckpointError, InvalidArgument
from eyeline.layers import pack
from eyeline.models.llama import (
    Encodings,
    Llama,
    LlamaConfig,
    Names,
    Part,
    half_split,
    weight_names,
)
from eyeline.patterns import Pattern
from eyeline.tokenizer import Tokenizer

# Where Hugging Face files keep the head that a tied model does not need.
_TIED_HEAD = "lm_head.weight"
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True)
class Loaded:
    """A model ready to write, its tokenizer (None if the checkpoint has none), and where from."""

    model: Llama
    tokenizer: Tokenizer | None
    config: LlamaConfig
    source: Path


def load(
    name_or_path: str | Path,
    *,
    pattern: Pattern | Sequence[Pattern] | None = None,
    encodings: Encodings = "absolute",
    dtype: torch.dtype | Literal["auto"] = "auto",
    device: torch.device | str = "cpu",
    packed: bool = True,
    progress: Progress | None = None,
) -> Loaded:
    """Loads a Llama-type model from a GGUF file or a Hugging Face folder, in eval mode.

    name_or_path: a path, or a name that ``eyeline models`` lists. pattern, encodings: as for
    ``Llama``; the pattern that the model was trained with if not given. dtype: "auto" is bfloat16
    where the processor multiplies it natively, else float32. packed: on a CPU, multiply
    single rows the fast way (``eyeline.layers.packed``); bfloat16 weights are then held twice.
    progress: as
    for ``eyeline.checkpoints.resolve``, told of what is fetched.

    Raises CheckpointError for a file that is damaged, or tensors that are missing, surplus or of
    another shape; NotSupported for a configuration that this code does not know in full.
    """
    target = torch.device(device)
    chosen = _dtype(dtype, target)
    checkpoint = checkpoints.open(resolve(name_or_path, progress=progress))
    model = build(checkpoint, pattern=pattern, encodings=encodings, dtype=chosen, device=target)
    if packed:
        pack(model)
    spec = checkpoint.tokenizer
    tokenizer = None if spec is None else Tokenizer.from_checkpoint(checkpoint)
    return Loaded(model, tokenizer, model.config, checkpoint.source)


def build(
    checkpoint: Checkpoint,
    *,
    pattern: Pattern | Sequence[Pattern] | None = None,
    encodings: Encodings = "absolute",
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Llama:
    """The model of an open checkpoint, with plain weights. Every tensor is accounted for."""
    config = _config(checkpoint)
    if config.layers > len(checkpoint.tensors):
        raise CheckpointError(
            f"{checkpoint.source}: {config.layers:,} layers are claimed, and the file holds "
            f"{len(checkpoint.tensors):,} tensors"
        )
    names = weight_names(config, checkpoint.format)
    with torch.device("meta"):
        model = Llama(config, pattern, encodings=encodings)
    _account(checkpoint, names)
    for name, parts in names.items():
        parent, _, leaf = name.rpartition(".")
        module = model.get_submodule(parent)
        weight = _read(checkpoint, parts, getattr(module, leaf).shape, dtype)
        setattr(module, leaf, nn.Parameter(weight.to(device)))
    if config.tied:
        model.head.weight = model.embedding.weight
        _check_tied(checkpoint, model)
    return model.eval()


def _config(checkpoint: Checkpoint) -> LlamaConfig:
    if checkpoint.format == "gguf":
        return LlamaConfig.from_gguf(
            checkpoint.config, tied="output.weight" not in checkpoint.tensors
        )
    return LlamaConfig.from_hf(checkpoint.config)


def _account(checkpoint: Checkpoint, names: Names) -> None:
    """Raises CheckpointError if a tensor is missing, or there and not used."""
    due = {part.name for parts in names.values() for part in parts}
    there = {name for name in checkpoint.tensors if not _derived(name)}
    for what, wrong in (("missing", due - there), ("surplus", there - due - {_TIED_HEAD})):
        if wrong:
            listed = ", ".join(f"{name!a:.80}" for name in sorted(wrong)[:5])
            more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
            raise CheckpointError(f"{checkpoint.source}: {what} tensors: {listed}{more}")


def _derived(name: str) -> bool:
    """Old Hugging Face files store the rotary frequencies, which follow from the config."""
    return name.startswith("model.layers.") and name.endswith(".rotary_emb.inv_freq")


def _read(
    checkpoint: Checkpoint, parts: Sequence[Part], shape: torch.Size, dtype: torch.dtype
) -> Tensor:
    """The parts stacked by rows, each brought to the dtype as it is read."""
    shapes = [checkpoint.tensors.info[part.name].shape for part in parts]
    if _stacked(shapes) != tuple(shape):
        listed = ", ".join(f"{p.name} {s}" for p, s in zip(parts, shapes, strict=True))
        raise CheckpointError(
            f"{checkpoint.source}: {listed}: the configuration asks for {tuple(shape)}"
        )
    weight, start = torch.empty(shape, dtype=dtype), 0
    for part in parts:
        piece = checkpoint.tensors.read(part.name, dtype=dtype)
        piece = half_split(piece, part.pairs) if part.pairs else piece
        weight[start : start + len(piece)] = piece
        start += len(piece)
    return weight


def _stacked(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    """The shape of tensors stacked by rows; None where they do not fit."""
    if any(not shape or shape[1:] != shapes[0][1:] for shape in shapes):
        return None
    return (sum(shape[0] for shape in shapes), *shapes[0][1:])


def _check_tied(checkpoint: Checkpoint, model: Llama) -> None:
    """A tied model may store its head all the same; then it must be the embedding."""
    if _TIED_HEAD not in checkpoint.tensors:
        return
    head = checkpoint.tensors.read(_TIED_HEAD, dtype=model.embedding.weight.dtype)
    if not torch.equal(head, model.embedding.weight.cpu()):
        raise CheckpointError(
            f"{checkpoint.source}: the config ties the head to the embedding, but "
            f"{_TIED_HEAD} differs from it"
        )


def _dtype(dtype: torch.dtype | Literal["auto"], device: torch.device) -> torch.dtype:
    if dtype == "auto":
        native = device.type != "cpu" or _multiplies_bfloat16()
        return torch.bfloat16 if native else torch.float32
    if dtype not in _DTYPES:
        raise InvalidArgument(f'dtype={dtype!r}: "auto", or one of {", ".join(map(str, _DTYPES))}')
    return dtype


def _multiplies_bfloat16() -> bool:
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name) is True for name in ("avx512_bf16", "amx_bf16", "arm_bf16"))
