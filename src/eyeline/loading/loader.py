"""From a name or a path to a model, whatever family and file it comes from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, overload

import torch

from eyeline import checkpoints
from eyeline.checkpoints.base import Checkpoint
from eyeline.checkpoints.fetch import Progress
from eyeline.checkpoints.resolve import resolve
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.layers import pack
from eyeline.loading.native_folder import (
    check_layers,
    is_own,
    read_model,
    read_tokenizer,
)
from eyeline.loading.weights import fill
from eyeline.mechanisms import Recipe
from eyeline.models import FAMILIES, Family, Model
from eyeline.models.base import Encodings
from eyeline.patterns import Pattern
from eyeline.tokenizer import AnyTokenizer, Tokenizer

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

M = TypeVar("M", bound=Model)


@dataclass(frozen=True)
class Loaded(Generic[M]):
    """A model ready for use, its tokenizer (None if the checkpoint has none), and where from."""

    model: M
    tokenizer: AnyTokenizer | None
    config: Any
    source: Path


@overload
def load(
    name_or_path: str | Path,
    *,
    kind: Callable[..., M],
    family: str | None = ...,
    pattern: Pattern | Sequence[Pattern] | None = ...,
    mechanism: Recipe | Sequence[Recipe] | None = ...,
    encodings: Encodings | None = ...,
    dtype: torch.dtype | Literal["auto"] = ...,
    device: torch.device | str = ...,
    packed: bool = ...,
    progress: Progress | None = ...,
) -> Loaded[M]: ...
@overload
def load(
    name_or_path: str | Path,
    *,
    family: str | None = ...,
    pattern: Pattern | Sequence[Pattern] | None = ...,
    mechanism: Recipe | Sequence[Recipe] | None = ...,
    encodings: Encodings | None = ...,
    dtype: torch.dtype | Literal["auto"] = ...,
    device: torch.device | str = ...,
    packed: bool = ...,
    progress: Progress | None = ...,
) -> Loaded[Any]: ...
def load(
    name_or_path: str | Path,
    *,
    kind: Callable[..., Model] = Model,
    family: str | None = None,
    pattern: Pattern | Sequence[Pattern] | None = None,
    mechanism: Recipe | Sequence[Recipe] | None = None,
    encodings: Encodings | None = None,
    dtype: torch.dtype | Literal["auto"] = "auto",
    device: torch.device | str = "cpu",
    packed: bool = True,
    progress: Progress | None = None,
) -> Loaded[Any]:
    """Loads a model from a GGUF file, a Hugging Face folder or one of our own, in eval mode.

    name_or_path: a path, or a name that ``eyeline models`` lists. kind: what it has to be, such
    as LanguageModel. family: how a folder is meant that several families can read, such as
    "bert_masked". pattern, mechanism, encodings: as for the model's class; those that it was
    saved or trained with if not given. dtype: "auto" is, for our own folders, what was saved; for
    others bfloat16 where the processor multiplies it natively, else float32. packed: on a CPU,
    multiply single rows the fast way (``eyeline.layers.packed``); bfloat16 weights are then held
    twice. progress: as for ``eyeline.checkpoints.resolve``, told of what is fetched.

    Raises CheckpointError for a file that is damaged, or tensors that are missing, surplus or of
    another shape; NotSupported for a configuration that this code does not know in full, and for
    a model that is not of the kind.
    """
    target, chosen = torch.device(device), _checked(dtype)
    given = {"pattern": pattern, "mechanism": mechanism, "encodings": encodings}
    changes = {name: value for name, value in given.items() if value is not None}
    path = resolve(name_or_path, progress=progress)
    model: Model
    tokenizer: AnyTokenizer | None
    if is_own(path):
        model = read_model(path, changes=changes, dtype=chosen, device=target)
        tokenizer, source = read_tokenizer(path), path
    else:
        checkpoint = checkpoints.open(path)
        best = chosen if chosen is not None else _fastest(target)
        model = build(checkpoint, family=family, dtype=best, device=target, **changes)
        tokenizer, source = _tokenizer(checkpoint), checkpoint.source
    if isinstance(kind, type) and not isinstance(model, kind):
        raise NotSupported(
            f"{source} holds a {type(model).__name__}, and a {kind.__name__} is asked for"
        )
    if packed:
        pack(model)
    return Loaded(model.eval(), tokenizer, model.config, source)


def build(
    checkpoint: Checkpoint,
    *,
    family: str | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    **choices: Any,
) -> Any:
    """The model of an open checkpoint, with plain weights. Every tensor is accounted for.

    choices: what the constructor of the family's class takes beside the configuration.
    """
    chosen = _family(checkpoint, family)
    config = _config(checkpoint, chosen)
    check_layers(config, checkpoint.tensors, checkpoint.source)
    assert chosen.names is not None, "a family that reads others' files has a name map"
    with torch.device("meta"):
        model = chosen.make(config, choices)
    fill(
        model,
        checkpoint.tensors,
        chosen.names(config, checkpoint.format, checkpoint.tensors.info),
        source=checkpoint.source,
        dtype=dtype,
        device=device,
        tied=chosen.tied,
        derived=chosen.derived,
    )
    return model.eval()


def _family(checkpoint: Checkpoint, name: str | None) -> Family:
    key = "general.architecture" if checkpoint.format == "gguf" else "model_type"
    word = checkpoint.config.get(key)
    words = {each: family.word(checkpoint.format) for each, family in FAMILIES.items()}
    known = [each for each in FAMILIES if word in words[each]]
    said = f"{checkpoint.source}: {key}={word!r:.60}"
    if not known:
        listed = ", ".join(sorted({each for some in words.values() for each in some}))
        raise NotSupported(f"{said} is not built yet; {listed} are")
    if name is not None and name not in known:
        raise InvalidArgument(f"{said} is read as {' or '.join(known)}, not as {name!r:.60}")
    return FAMILIES[name if name is not None else _meant(checkpoint, known)]


def _meant(checkpoint: Checkpoint, known: Sequence[str]) -> str:
    """Which of the families that could read a file it names as its architecture; else the first."""
    named = checkpoint.config.get("architectures")
    said = named if isinstance(named, list) else []
    fits = [each for each in known if any(x in said for x in FAMILIES[each].architectures)]
    return fits[0] if fits else known[0]


def _config(checkpoint: Checkpoint, family: Family) -> Any:
    if checkpoint.format != "gguf":
        return family.config.from_hf(checkpoint.config, checkpoint.tensors.info)
    values, info = dict(checkpoint.config), checkpoint.tensors.info
    if "token_embd.weight" in info and info["token_embd.weight"].shape:
        # Not every file says it.
        values.setdefault(f"{family.gguf}.vocab_size", info["token_embd.weight"].shape[0])
    return family.config.from_gguf(values, tied="output.weight" not in info)


def _tokenizer(checkpoint: Checkpoint) -> Tokenizer | None:
    return None if checkpoint.tokenizer is None else Tokenizer.from_checkpoint(checkpoint)


def _checked(dtype: torch.dtype | Literal["auto"]) -> torch.dtype | None:
    """None for "auto"."""
    if dtype == "auto":
        return None
    if dtype not in _DTYPES:
        raise InvalidArgument(f'dtype={dtype!r}: "auto", or one of {", ".join(map(str, _DTYPES))}')
    return dtype


def _fastest(device: torch.device) -> torch.dtype:
    native = device.type != "cpu" or multiplies_bfloat16()
    return torch.bfloat16 if native else torch.float32


def multiplies_bfloat16() -> bool:
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name) is True for name in ("avx512_bf16", "amx_bf16", "arm_bf16"))
