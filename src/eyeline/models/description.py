"""What ``eyeline.json`` says of a saved model, so that it can be made again: all but its weights.

{"format": 1, "family": "llama", "config": {"vocabulary": 260, …},
 "choices": {"pattern": "causal & window(256)", "mechanism": "exact", "encodings": "absolute"},
 "tokenizer": …, "notes": {…}}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from eyeline.checkpoints.base import Tensors
from eyeline.errors import CheckpointError, EyelineError, NotSupported
from eyeline.mechanisms import Recipe, recipe
from eyeline.models import FAMILIES
from eyeline.models.base import Model
from eyeline.models.plain import from_plain, to_plain
from eyeline.patterns import Pattern, parse

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
