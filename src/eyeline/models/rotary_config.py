"""The rotary part of a Hugging Face configuration: the base, and the scaling if there is one.

Older files say ``rope_theta`` and ``rope_scaling``, newer ones put both into ``rope_parameters``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from eyeline.encodings.rotary_scaling import Linear, Llama3, Scaling, YaRN
from eyeline.errors import CheckpointError, InvalidArgument, NotSupported
from eyeline.models.guard import Attributes

_DEFAULT_BASE = 10000.0


def read_rotary(
    attributes: Attributes, *, model: str, trained_length: int
) -> tuple[float, Scaling | None]:
    """(base, scaling). trained_length stands in where a file does not say the original length.

    Raises NotSupported, by name, for scalings that are not built and for what is not known in
    them; CheckpointError for what is missing, not a number in its range, or a contradiction.
    """
    name, values = _table(attributes, model)
    outer = _number(attributes, "rope_theta", model)
    if values is None:
        return outer if outer is not None else _DEFAULT_BASE, None
    model = f"{model}: {name}"
    inner = Attributes(values, model=model)
    base = _number(inner, "rope_theta", model)
    if outer is not None and base is not None and outer != base:
        raise CheckpointError(f"{model} says rope_theta={base}, outside it stands {outer}")
    given = base if base is not None else outer
    scaling = _scaling(inner, _kind(inner, model), model=model, trained_length=trained_length)
    inner.expect("partial_rotary_factor", 1.0)
    inner.done()
    return given if given is not None else _DEFAULT_BASE, scaling


def _table(attributes: Attributes, model: str) -> tuple[str, Mapping[str, object] | None]:
    """The one table there is, with its name."""
    both = {name: attributes.optional(name) for name in ("rope_scaling", "rope_parameters")}
    said = {name: value for name, value in both.items() if value is not None}
    if len(said) == 2 and said["rope_scaling"] != said["rope_parameters"]:
        raise CheckpointError(f"{model}: rope_scaling and rope_parameters differ: {said!r:.200}")
    for name, value in said.items():
        if not isinstance(value, Mapping):
            raise NotSupported(f"{model}: {name}={value!r:.120}: not a table of parameters")
        return name, value
    return "", None


def _kind(inner: Attributes, model: str) -> object:
    """rope_type, which older files call type."""
    kinds = [inner.optional("rope_type"), inner.optional("type")]
    said = [kind for kind in kinds if kind is not None]
    if len(said) == 2 and said[0] != said[1]:
        raise CheckpointError(f"{model} says rope_type={said[0]!r:.60} and type={said[1]!r:.60}")
    return said[0] if said else "default"


def _scaling(inner: Attributes, kind: object, *, model: str, trained_length: int) -> Scaling | None:
    try:
        if kind == "default":
            return None
        if kind == "linear":
            return Linear(inner.number("factor"))
        if kind == "llama3":
            return _llama3(inner, trained_length)
        if kind == "yarn":
            return _yarn(inner, model, trained_length)
    except InvalidArgument as error:
        raise CheckpointError(f"{model}: {error}") from error
    why = ""
    if kind == "dynamic":
        why = ": its speeds change with the length, and keys in a cache would keep the old ones"
    raise NotSupported(f"{model} has rope_type={kind!r:.60}, which is not built yet{why}")


def _llama3(inner: Attributes, trained_length: int) -> Llama3:
    return Llama3(
        inner.number("factor"),
        low_freq_factor=inner.number("low_freq_factor"),
        high_freq_factor=inner.number("high_freq_factor"),
        original_length=inner.whole("original_max_position_embeddings", trained_length),
    )


def _yarn(inner: Attributes, model: str, trained_length: int) -> YaRN:
    factor = inner.number("factor")
    magnitude = _number(inner, "attention_factor", model)
    weights = [_number(inner, name, model) for name in ("mscale", "mscale_all_dim")]
    if magnitude is None and weights[0] is not None and weights[1] is not None:
        over, under = (0.1 * weight * math.log(factor) + 1.0 for weight in weights if weight)
        magnitude = over / under
    elif weights != [None, None]:
        raise NotSupported(
            f"{model}: mscale and mscale_all_dim count together, without attention_factor; "
            f"here they are {weights[0]} and {weights[1]}, and it is {magnitude}"
        )
    return YaRN(
        factor,
        original_length=inner.whole("original_max_position_embeddings", trained_length),
        beta_fast=inner.number("beta_fast", 32.0),
        beta_slow=inner.number("beta_slow", 1.0),
        attention_factor=magnitude,
        truncate=inner.flag("truncate", True),
    )


def _number(attributes: Attributes, name: str, model: str) -> float | None:
    """A number above 0, or None if it is not said."""
    value = attributes.optional(name)
    return None if value is None else Attributes({name: value}, model=model).number(name)
