"""One set of weights under several patterns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import nn

from eyeline.layers import PackedLinear
from eyeline.models import LanguageModel
from eyeline.patterns import Pattern

M = TypeVar("M", bound=LanguageModel)


def under(model: M, pattern: Pattern | Sequence[Pattern]) -> M:
    """The same model under another pattern (or one per layer). The weights are shared, not copied.

    So several patterns are compared in the memory of one model, and by turns.
    Raises InvalidArgument if the number of patterns is not the number of layers.
    """
    with torch.device("meta"):
        other = type(model)(model.config, **{**model.choices(), "pattern": pattern})
    for name, module in model.named_modules():
        if isinstance(module, (PackedLinear, nn.Linear)):  # with what it keeps of its weight
            other.set_submodule(name, module)
    for name, weight in model.state_dict(keep_vars=True).items():
        parent, _, leaf = name.rpartition(".")
        setattr(other.get_submodule(parent), leaf, weight)
    return other.train(model.training)
