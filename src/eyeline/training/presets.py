"""Sizes by name, and what a run is if nothing else is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from eyeline.errors import InvalidArgument
from eyeline.training.run import TaskName


class Size(NamedTuple):
    """Layers, their width, and heads; rate: the highest learning rate that suits it.

    Of a Transformer, as many layers read as write.
    """

    layers: int
    width: int
    heads: int
    rate: float


# Parameters with bytes as tokens:      llama   gpt2   bert   transformer
SIZES: Mapping[str, Size] = {
    "tiny": Size(2, 64, 2, 4e-3),     # 0.12M
    "mini": Size(2, 128, 4, 4e-3),    # 0.5M                   1.0M
    "small": Size(4, 256, 4, 2e-3),   # 3.2M
    "base": Size(6, 384, 6, 1e-3),    # 10M
    "medium": Size(8, 512, 8, 8e-4),  # 25M
    "large": Size(12, 768, 12, 6e-4), # 85M
}  # fmt: skip

FAMILIES: Mapping[TaskName, tuple[str, ...]] = {
    "lm": ("llama", "gpt2"),
    "mlm": ("bert",),
    "classify": ("bert",),
    "seq2seq": ("transformer",),
}
"""The families that can learn a task; the first is taken if none is named."""


class Usual(NamedTuple):
    """The rest of a run: a size by name, dropout, length in tokens, tokens a step, steps."""

    size: str
    dropout: float
    length: int
    batch_tokens: int
    steps: int


USUAL: Mapping[TaskName, Usual] = {
    "lm": Usual("small", 0.0, 256, 2048, 2000),
    "mlm": Usual("small", 0.0, 256, 4096, 1000),
    "classify": Usual("small", 0.0, 256, 4096, 500),
    # Pairs are few and short, as lists of names are: a small model that forgets on purpose.
    "seq2seq": Usual("mini", 0.1, 256, 4096, 3000),
}


def size_of(name: str) -> Size:
    """By its name. Raises InvalidArgument with those that there are."""
    if name not in SIZES:
        raise InvalidArgument(f"size {name!r}: there are {', '.join(SIZES)}")
    return SIZES[name]
