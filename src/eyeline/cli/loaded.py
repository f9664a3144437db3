"""Loading a model for a verb, with a bar."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from eyeline.cli.options import ModelDtype, torch_dtype
from eyeline.cli.output import Bar
from eyeline.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

    from eyeline.loading.native_folder import AnyTokenizer
    from eyeline.models import LanguageModel


class Ready(NamedTuple):
    """A model with its tokenizer."""

    name: str
    model: LanguageModel
    tokenizer: AnyTokenizer
    source: Path

    @property
    def dtype(self) -> str:
        """In words."""
        return str(self.model.embedding.weight.dtype).removeprefix("torch.")


def load_model(
    name: str | None,
    *,
    dtype: ModelDtype,
    encodings: Literal["absolute", "recounted"] | None = None,
) -> Ready:
    """The named language model, or the default one; encodings: its own if not given."""
    from eyeline.checkpoints.known import DEFAULT_MODEL
    from eyeline.loading import load
    from eyeline.models import LanguageModel

    name = name if name is not None else DEFAULT_MODEL
    with Bar(f"loading {name}") as report:
        loaded = load(
            name,
            kind=LanguageModel,
            encodings=encodings,
            dtype=torch_dtype(dtype),
            progress=report,
        )
    if loaded.tokenizer is None:
        raise CheckpointError(f"{loaded.source}: there is no tokenizer in it, and text needs one")
    return Ready(name, loaded.model, loaded.tokenizer, loaded.source)
