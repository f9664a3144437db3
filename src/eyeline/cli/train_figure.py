"""loss.png: the loss of each step, and what was measured on held-out data."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eyeline.cli.figures import COST, LOSS, QUIET, RULE, bare, heading, store, styled
from eyeline.cli.train_words import measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FILE = "loss.png"
_POINTS = 400


def draw(folder: Path, main: str) -> None:
    """Draws the metrics of a folder into it; nothing happens where matplotlib is missing."""
    from eyeline.training.metrics import read_metrics

    lines = read_metrics(folder)
    if find_spec("matplotlib") is None or not any("loss" in line for line in lines):
        return
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(styled()):
        figure = Figure(figsize=(8.0, 4.6))
        heading(figure, "Training loss", _below(lines, main))
        axes = figure.add_axes((0.09, 0.13, 0.86, 0.68))
        _curves(axes, lines)
        beside = folder / f".{FILE}.part.png"
        store(figure, beside, option="loss.png")
        beside.replace(folder / FILE)


def _below(lines: list[dict[str, Any]], main: str) -> str:
    measured = [line["measured"] for line in lines if "measured" in line]
    last = f"; {measure(main, measured[-1][main])} on held-out data" if measured else ""
    return f"Nats per target, {lines[-1]['step']:,} steps{last}."


def _curves(axes: Axes, lines: list[dict[str, Any]]) -> None:
    steps = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    axes.plot(*zip(*_smooth(steps), strict=True), color=COST, linewidth=1.6, label="training")
    held = [(line["step"], line["measured"]["loss"]) for line in lines if "measured" in line]
    if held:
        axes.plot(
            *zip(*held, strict=True), color=LOSS, linewidth=2.2, marker="o", markersize=4,
            label="held out",
        )  # fmt: skip
    axes.grid(color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel("steps", color=QUIET)
    axes.legend(frameon=False)
    bare(axes)


def _smooth(steps: list[tuple[int, float]]) -> list[tuple[float, float]]:
    """Means of neighbours, so that there are no more points than can be told apart."""
    each = -(-len(steps) // _POINTS)
    parts = [steps[start : start + each] for start in range(0, len(steps), each)]
    return [(part[-1][0], sum(loss for _, loss in part) / len(part)) for part in parts]
