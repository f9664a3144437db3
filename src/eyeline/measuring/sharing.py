"""One set of weights under several patterns."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from eyeline.mechanisms import Exact
from eyeline.models import Llama
from eyeline.patterns import Pattern


def under(model: Llama, pattern: Pattern | Sequence[Pattern]) -> Llama:
    """The same model under another pattern (or one per layer). The weights are shared, not copied.

    So several patterns are compared in the memory of one model, and by turns.
    Raises InvalidArgument if the number of patterns is not the number of layers.
    """
    with torch.device("meta"):
        other = Llama(model.config, pattern, encodings=model.encodings)
    for name, module in model.named_modules():
        if not isinstance(module, Exact) and next(module.children(), None) is None:
            other.set_submodule(name, module)
    # Some weights belong to a block itself, not to a module of their own.
    for name, weight in model.named_parameters(remove_duplicate=False):
        parent, _, leaf = name.rpartition(".")
        setattr(other.get_submodule(parent), leaf, weight)
    return other.train(model.training)
