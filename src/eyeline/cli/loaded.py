"""Loading a model for a verb, with a bar."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from eyeline.cli.bar import Bar
from eyeline.cli.options import ModelDtype, torch_dtype
from eyeline.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

    from eyeline.models import Llama
    from eyeline.tokenizer import Tokenizer


class Ready(NamedTuple):
    """A model with its tokenizer."""

    name: str
    model: Llama
    tokenizer: Tokenizer
    source: Path

    @property
    def dtype(self) -> str:
        """In words."""
        return str(self.model.embedding.weight.dtype).removeprefix("torch.")


def load_model(
    name: str | None,
    *,
    dtype: ModelDtype,
    encodings: Literal["absolute", "recounted"] = "absolute",
) -> Ready:
    """The named model, or the default one."""
    from eyeline.checkpoints.known import DEFAULT_MODEL
    from eyeline.loading import load

    name = name if name is not None else DEFAULT_MODEL
    with Bar(f"loading {name}") as report:
        loaded = load(name, dtype=torch_dtype(dtype), encodings=encodings, progress=report)
    if loaded.tokenizer is None:
        raise CheckpointError(f"{loaded.source}: there is no tokenizer in it, and text needs one")
    return Ready(name, loaded.model, loaded.tokenizer, loaded.source)
