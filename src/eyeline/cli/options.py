"""What several verbs are asked, and in which words."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from eyeline.errors import InvalidArgument, NotSupported

if TYPE_CHECKING:
    import torch

PATTERN_HELP = (
    'Who may look at whom, such as "streaming(512, 4)" or "causal & window(255, 0)"; or by '
    'layer, "0-9: causal; 10-29: sliding_window(256)".'
)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Plot = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE.png|svg", help="Draw the result into this file."),
]
_FIGURES = (".png", ".svg", ".pdf")


class ModelDtype(str, Enum):
    """Types that a model is loaded in. auto: bfloat16 where the processor multiplies it."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"


class AttentionDtype(str, Enum):
    """Types that attention computes in."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"
    float64 = "float64"


def torch_dtype(choice: ModelDtype) -> torch.dtype | Literal["auto"]:
    """The type to load a model in."""
    if choice is ModelDtype.auto:
        return "auto"
    import torch

    dtype: torch.dtype = getattr(torch, choice.value)
    return dtype


def check_plot(path: Path | None, *, option: str = "--plot") -> None:
    """Finds out before the work, not after it, that a figure cannot be drawn or stored."""
    if path is None:
        return
    if path.suffix.lower() not in _FIGURES:
        raise InvalidArgument(f"{option} {path}: a name that ends in {', '.join(_FIGURES)}")
    if not path.absolute().parent.is_dir():
        raise InvalidArgument(f"{option} {path}: there is no folder {path.absolute().parent}")
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise NotSupported(
            f"{option} needs matplotlib; install it with: pip install 'eyeline[app]'"
        )
