"""What the figures have in common: colours, type, and how they are stored."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from eyeline.errors import InvalidArgument

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, QUIET, RULE, PAPER = "#1f2933", "#7b8794", "#e4e7eb", "#ffffff"
COST, LOSS = "#0f766e", "#c2410c"
SERIES = ("#0f766e", "#c2410c", "#4f46e5", "#b45309", "#be185d", "#0369a1", "#4d7c0f", "#7c3aed")
_STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ["Inter", "Helvetica Neue", "Arial", "DejaVu Sans"],
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": RULE,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "svg.hashsalt": "eyeline",
    "svg.fonttype": "path",
}


def styled() -> Any:
    """Settings for ``matplotlib.rc_context``: to draw and to store in."""
    import logging

    # Which of the fonts there are is nobody's concern.
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    return dict(_STYLE)


def bare(axes: Axes, *keep: str) -> None:
    """Takes away the frame but for the sides named, and the ticks' marks."""
    for side, spine in axes.spines.items():
        spine.set_visible(side in keep)
    axes.tick_params(length=0)


def heading(figure: Figure, title: str, below: str) -> None:
    """A title at the upper left, and a quiet line under it; distances from the top in inches."""
    height = figure.get_figheight()
    left = 0.22 / figure.get_figwidth()
    figure.text(left, 1 - 0.22 / height, title, fontsize=14, fontweight="bold", va="top")
    figure.text(left, 1 - 0.54 / height, below, fontsize=9.5, color=QUIET, va="top")


def store(figure: Figure, path: Path, *, option: str = "--plot") -> None:
    """Writes the figure in the form its name asks for, the same bytes for the same numbers."""
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    try:
        figure.savefig(path, dpi=200, facecolor=PAPER, metadata=undated.get(path.suffix.lower()))
    except OSError as error:
        raise InvalidArgument(f"{option} {path}: {error.strerror}") from None
