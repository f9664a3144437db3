"""A family of models: its configuration, its module, and what files call its weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from eyeline.errors import NotSupported
from eyeline.models.base import Form, Model, Names


@dataclass(frozen=True)
class Family:
    """config: a frozen dataclass, with ``from_hf`` where hf is not empty, ``from_gguf`` for gguf.

    names(config, form, names in the file): of the weights in files; None where there are no
    files but our own. hf: the words for it in ``model_type``; several families may read one,
    of which that with the file's ``architectures`` is taken, or the first, if nobody says which.
    gguf: its ``general.architecture``.
    derived: whether a tensor of a file follows from the configuration. tied: tensors that files
    may hold although they equal the parameter of that name.
    """

    config: type[Any]
    model: Callable[..., Model]
    names: Callable[[Any, Form, Collection[str]], Names] | None = None
    hf: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    gguf: str | None = None
    derived: Callable[[str], bool] = lambda name: False
    tied: Mapping[str, str] = field(default_factory=dict)

    def make(self, config: Any, choices: Mapping[str, Any]) -> Model:
        """The model, its weights drawn. Raises NotSupported for a choice that it has not."""
        takes = list(inspect.signature(self.model).parameters)[1:]
        unknown = [name for name in choices if name not in takes]
        if unknown:
            name = getattr(self.model, "__name__", "the model")
            raise NotSupported(f"{name} has no {' or '.join(unknown)}; it has {', '.join(takes)}")
        return self.model(config, **choices)

    def word(self, form: Form) -> tuple[str, ...]:
        """What files of that form call the family."""
        return self.hf if form == "huggingface" else tuple(filter(None, (self.gguf,)))
