"""A convolution along the sequence with the call of an attention layer."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from eyeline.layers.checks import check_input, check_sizes, check_tokens
from eyeline.layers.taps import Taps, taps
from eyeline.patterns import Dilated
from eyeline.planning import max_path_length, pairs
from eyeline.planning.cost import Asked, Work, numbers_in
from eyeline.tokens import Tokens


@final
class Convolution(nn.Module):
    """y[i] = b + Σ_t W_t x[i + (t - c) · dilation], t < kernel, i and its neighbours by position.

    x (B, L, width) to the same. c = kernel - 1 with causal: no token sees the future; else
    c = ⌊kernel / 2⌋: as many on both sides for an odd kernel. Nobody, and whoever stands beyond
    the ends, is 0; documents do not see each other. conv: an nn.Conv1d, which holds W and b.

    Multiplications L · kernel · width²; one sequential step. A stack of layers reaches
    (kernel - 1) · Σ dilations further: linear in the layers, exponential if dilations double.
    van den Oord et al. 2016; Gehring et al. 2017.

    Raises InvalidArgument for sizes below 1.
    """

    def __init__(self, width: int, kernel: int, *, dilation: int = 1, causal: bool = False) -> None:
        super().__init__()
        check_sizes(width=width, kernel=kernel, dilation=dilation)
        self.width, self.causal = width, bool(causal)
        self.conv = nn.Conv1d(width, width, kernel, dilation=dilation)
        centre = kernel - 1 if causal else kernel // 2
        self.offsets = tuple((tap - centre) * dilation for tap in range(kernel))

    @property
    def causality(self) -> str:
        """ "functional": no past output depends on the future; or "none"."""
        return "functional" if self.offsets[-1] == 0 else "none"

    def forward(self, x: Tensor, *, q_tokens: Tokens | None = None) -> Tensor:
        """(B, L, width) to the same. q_tokens: what stands in each slot; 0 … L-1 if not given."""
        check_input("x", x, self.width, self.conv.weight)
        if not x.numel():
            return x
        if q_tokens is None:
            return self._along(x)
        check_tokens("q_tokens", q_tokens, *x.shape[:2])
        found = taps(q_tokens, self.offsets, x.device)
        nobody = ~found.real[..., None]
        x = x.masked_fill(nobody, 0.0)
        out = self._picked(x, found) if found.slots else self._along(x)
        return out.masked_fill(nobody, 0.0)

    def work(self, asked: Asked) -> Work:
        """width² for each pair of a token and a neighbour; kernel · width² a token are computed,
        as if all neighbours were there. See ``eyeline.cost``."""
        call = asked.without_heads("a convolution", self.width)
        meeting = pairs(self._neighbours, call.length)
        every, square = call.length * len(self.offsets), self.width**2
        return Work(
            call, meeting, every, meeting * square, every * square,
            numbers=2 * call.length * self.width + numbers_in(self),
        )  # fmt: skip

    def path(self, length: int) -> int:
        """How many such layers until all have heard of all they can; see ``max_path_length``."""
        return max_path_length(self._neighbours, length)

    @property
    def _neighbours(self) -> Dilated:
        step = self.conv.dilation[0]
        return Dilated(step, -self.offsets[0] // step, self.offsets[-1] // step)

    def _along(self, x: Tensor) -> Tensor:
        """Where slots stand side by side."""
        ends = -self.offsets[0], self.offsets[-1]
        out: Tensor = self.conv(nn.functional.pad(x.mT, ends)).mT
        return out

    def _picked(self, x: Tensor, found: Taps) -> Tensor:
        """Tap by tap, wherever neighbours lie."""
        out = torch.zeros_like(x)
        for weight, slots, there in zip(
            self.conv.weight.unbind(2), found.slots, found.there, strict=True
        ):
            index = slots[..., None].expand(x.shape)
            out = out + x.gather(1, index).masked_fill(~there[..., None], 0.0) @ weight.mT
        return out if self.conv.bias is None else out + self.conv.bias

    def extra_repr(self) -> str:
        return f"causal={self.causal}"
