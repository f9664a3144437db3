"""Reading our own folders: ``eyeline.json``, ``model.safetensors`` and the tokenizer's file."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch

from eyeline.checkpoints.base import Tensors, TokenizerFile, TokenizerSpec, read_object
from eyeline.checkpoints.folder import SafeTensors
from eyeline.encodings import rotary_scaling
from eyeline.errors import CheckpointError, EyelineError, NotSupported
from eyeline.loading.weights import fill, own_names
from eyeline.mechanisms import Recipe, recipe
from eyeline.models import FAMILIES
from eyeline.models.base import Model
from eyeline.patterns import Pattern, parse
from eyeline.tokenizer import BYTES, AnyTokenizer, ByteTokenizer, Tokenizer

# Configurations as JSON: plain numbers and words, checked by the fields' own types.


# Values inside a configuration that are objects themselves are named by their class.
_NESTED: Mapping[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        rotary_scaling.Linear,
        rotary_scaling.NTK,
        rotary_scaling.YaRN,
        rotary_scaling.Llama3,
    )
}
_KIND = "kind"


def to_plain(config: Any) -> dict[str, Any]:
    """The fields of a configuration; ``from_plain`` is the inverse."""
    found = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return {name: _as_plain(value) for name, value in found.items()}


def from_plain(cls: type[Any], values: object, *, model: str) -> Any:
    """The configuration. Raises CheckpointError for a value of another type or one that is
    missing, NotSupported for a name that it does not know.
    """
    if not isinstance(values, dict):
        raise CheckpointError(f"{model}: a configuration is an object, not {values!r:.60}")
    hints, fields = typing.get_type_hints(cls), dataclasses.fields(cls)
    unknown = sorted(set(values) - {field.name for field in fields})
    if unknown:
        raise NotSupported(f"{model}: unknown in the configuration: {', '.join(unknown):.200}")
    for field in fields:
        if field.name not in values and field.default is dataclasses.MISSING:
            raise CheckpointError(f"{model}: the configuration lacks {field.name}")
    read = {name: _from_plain(values[name], hints[name], f"{model}: {name}") for name in values}
    return cls(**read)


def _as_plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and type(value).__name__ in _NESTED:
        return {_KIND: type(value).__name__, **to_plain(value)}
    return value


def _from_plain(value: object, hint: Any, place: str) -> Any:
    """The value, if it is of the type; an int serves as a float."""
    if isinstance(value, dict) and value.get(_KIND) in _NESTED:
        cls = _NESTED[str(value[_KIND])]
        inner = {name: each for name, each in value.items() if name != _KIND}
        value = from_plain(cls, inner, model=place)
    if not _fits(value, hint):
        raise CheckpointError(f"{place}={value!r:.60}: {_type_text(hint)} is due")
    return value


def _fits(value: object, hint: Any) -> bool:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(_fits(value, each) for each in typing.get_args(hint))
    if typing.get_origin(hint) is Literal:
        return value in typing.get_args(hint)
    if isinstance(value, bool):
        return hint is bool
    if hint is float:
        return isinstance(value, (int, float)) and math.isfinite(value)
    return isinstance(value, hint)


def _type_text(hint: Any) -> str:
    return getattr(hint, "__name__", str(hint)).replace("NoneType", "null")


# What ``eyeline.json`` says of a saved model, so that it can be made again: all but its weights.
#
# {"format": 1, "family": "llama", "config": {"vocabulary": 260, …},
#  "choices": {"pattern": "causal & window(256)", "mechanism": "exact", "encodings": "absolute"},
#  "tokenizer": …, "notes": {…}}

FILE, WEIGHTS, FORMAT = "eyeline.json", "model.safetensors", 1


def describe(model: Model) -> dict[str, Any]:
    """Family, configuration and choices, as plain JSON.

    Raises NotSupported for a model of no family, and for patterns that carry tensors or callables
    (explicit, predicate): they have no text that says them.
    """
    family, config = family_of(model), to_plain(model.config)
    choices = {name: _written(name, value) for name, value in model.choices().items()}
    return {"format": FORMAT, "family": family, "config": config, "choices": choices}


def sketch(
    values: Mapping[str, Any], tensors: Tensors, *, source: str, changes: Mapping[str, Any]
) -> Model:
    """The model that was described, on "meta": its weights are yet to be read.

    changes: other choices than those that are described. What neither says is left to the
    constructor. Raises CheckpointError for a
    description that is none, NotSupported for a later format, an unknown family or option.
    """
    if values.get("format") != FORMAT:
        raise NotSupported(
            f"{source}: format {values.get('format')!r:.40}; this version reads format {FORMAT}"
        )
    name = values.get("family")
    if not isinstance(name, str) or name not in FAMILIES:
        raise NotSupported(f"{source}: family {name!r:.60}; known are {', '.join(FAMILIES)}")
    config = from_plain(FAMILIES[name].config, values.get("config"), model=f"{source}: {name}")
    check_layers(config, tensors, source)
    choices = values.get("choices", {})
    if not isinstance(choices, dict):
        raise CheckpointError(f"{source}: choices are an object, not {choices!r:.60}")
    read = {key: _read(key, value, source) for key, value in choices.items()}
    with torch.device("meta"):
        return FAMILIES[name].make(config, {**read, **changes})


def family_of(model: Model) -> str:
    """The name of its family. Raises NotSupported if it has none."""
    for name, family in FAMILIES.items():
        if family.model is type(model):
            return name
    raise NotSupported(f"{type(model).__name__} is of no family: {', '.join(FAMILIES)}")


def check_layers(config: Any, tensors: Tensors, source: object) -> None:
    """A claim of many layers costs no time before it is found wrong. Raises CheckpointError."""
    claimed = [value for name, value in to_plain(config).items() if "layers" in name]
    most = max((value for value in claimed if isinstance(value, int)), default=0)
    if most > len(tensors):
        raise CheckpointError(
            f"{source}: {most:,} layers are claimed, and the file holds {len(tensors):,} tensors"
        )


def _written(name: str, value: Any) -> Any:
    write = _pattern_text if name.endswith("pattern") else _plain
    if isinstance(value, (tuple, list)):
        texts = [write(each) for each in value]
        return texts[0] if len(set(texts)) == 1 else texts
    return write(value)


def _pattern_text(pattern: Pattern | None) -> str | None:
    if pattern is not None and pattern.bound:
        raise NotSupported(
            f"{pattern} cannot be saved: it carries a tensor or a callable, which no text says; "
            "save with a pattern that is made of words and numbers"
        )
    if pattern is not None and not _known(pattern):
        raise NotSupported(f"{pattern} cannot be saved: reading its text does not give it back")
    return None if pattern is None else str(pattern)


def _known(pattern: Pattern) -> bool:
    """Whether its text can be read; that of somebody's own class of patterns cannot."""
    try:
        return parse(str(pattern)) == pattern
    except EyelineError:
        return False


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Recipe) else value


def _read(name: str, value: Any, source: str) -> Any:
    read: Callable[[str], Any] | None = None
    if name.endswith("pattern"):
        read = parse
    elif name.endswith("mechanism"):
        read = recipe
    if read is None or value is None:
        return value
    texts = value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in texts):
        raise CheckpointError(f"{source}: {name}={value!r:.60}: a text or a list of texts is due")
    try:
        found = [read(text) for text in texts]
    except EyelineError as error:
        raise CheckpointError(f"{source}: {name}: {error}") from None
    return found if isinstance(value, list) else found[0]


TOKENIZER_FILE = "tokenizer.json"


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
