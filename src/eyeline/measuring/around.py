"""What stands around attention in a block: how long projections, feed-forward and norms take."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from eyeline.layers import FeedForward
from eyeline.measuring.shapes import Shape
from eyeline.measuring.timing import by_turns


@dataclass(frozen=True)
class Around:
    """Seconds of a block, beside attention proper: of its four projections, and of the rest."""

    projections: float
    rest: float


def around(shape: Shape, length: int, *, rounds: int) -> Around:
    """Of a block as wide as the heads together, whose feed-forward is four times as wide.

    Medians, by turns; with the shape's backward pass, if it has one.
    """
    width, kv_width = shape.heads * shape.dim, shape.groups * shape.dim
    outward = (width, kv_width, kv_width, width)
    projections = _Side([nn.Linear(width, out) for out in outward])
    norms = [nn.LayerNorm(width), nn.LayerNorm(width)]
    rest = _Side([*norms, FeedForward(width, 4 * width, activation="gelu")])
    x = torch.randn(1, length, width, dtype=shape.dtype, requires_grad=shape.backward)
    runs = {
        name: partial(shape.run, module.to(shape.dtype), (x,))
        for name, module in (("projections", projections), ("rest", rest))
    }
    return Around(**by_turns(runs, rounds=rounds))


class _Side(nn.Module):
    """Layers side by side on one input, whose outputs are all needed."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([layer(x) for layer in self.layers], -1)
