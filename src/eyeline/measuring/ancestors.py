"""The ancestors as the table calls all layers: with one text, x (B, L, width)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from torch import Tensor, nn

from eyeline.layers.ancestors import Decomposable, IntraDecoder, IntraTemporal, StructuredAttention
from eyeline.planning.cost import Asked, Work


@final
class OfTokens(nn.Module):
    """A layer whose arguments are made of one text; it counts as the layer itself does."""

    def __init__(self, layer: Any, call: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.call = layer, call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self.layer, x)

    def work(self, asked: Asked) -> Work:
        """The layer's own."""
        found: Work = self.layer.work(asked)
        return found

    def path(self, length: int) -> int:
        """The layer's own."""
        found: int = self.layer.path(length)
        return found


def structured(width: int, hidden: int = 64, *, hops: int = 4) -> nn.Module:
    """Lin et al. 2017: the matrix of a sentence."""
    return OfTokens(StructuredAttention(width, hidden, hops), lambda layer, x: layer(x).embedding)


def decomposable(
    width: int, hidden: int = 64, *, classes: int = 3, intra: bool = False
) -> nn.Module:
    """Parikh et al. 2016: a sentence compared with itself."""
    layer = Decomposable(width, hidden, classes=classes, intra=intra)
    return OfTokens(layer, lambda layer, x: layer(x, x))


def intra_temporal(width: int) -> nn.Module:
    """Paulus et al. 2017: as many decoder states as words of the memory."""
    return OfTokens(IntraTemporal(width), lambda layer, x: layer(x, x).context)


def intra_decoder(width: int) -> nn.Module:
    """Paulus et al. 2017: decoder states that look at the earlier ones."""
    return IntraDecoder(width)
