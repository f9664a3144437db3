"""Convolution and recurrence with the call of an attention layer: attention's rivals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, final

import torch
from torch import Tensor, nn

from eyeline.checks import check_sizes
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.layers.checks import check_input, check_tokens, order_of
from eyeline.memory import traced
from eyeline.patterns import Dilated
from eyeline.planning import max_path_length, pairs
from eyeline.planning.cost import Asked, Countable, Work, numbers_in
from eyeline.tokens import NOBODY, Tokens
from eyeline.tokens.ordering import neighbours, real_slots, remembered_by_tokens

# A convolution along the sequence with the call of an attention layer.


@final
class Convolution(nn.Module, Countable):
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
        if traced():
            raise NotSupported(
                "a convolution looks up where tokens stand, which a graph does not know"
            )
        real = real_slots(q_tokens, x.device)
        x = x if real is None else x.masked_fill(~real[..., None], 0.0)
        out = self._along(x) if _side_by_side(q_tokens) else self._picked(x, q_tokens)
        return out if real is None else out.masked_fill(~real[..., None], 0.0)

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

    def _picked(self, x: Tensor, tokens: Tokens) -> Tensor:
        """Tap by tap, wherever neighbours lie."""
        out = torch.zeros_like(x)
        for weight, offset in zip(self.conv.weight.unbind(2), self.offsets, strict=True):
            out = out + neighbours(tokens, offset, x.device).take(x, 1) @ weight.mT
        return out if self.conv.bias is None else out + self.conv.bias

    def extra_repr(self) -> str:
        return f"causal={self.causal}"


@remembered_by_tokens
def _side_by_side(tokens: Tokens) -> bool:
    """Whether neighbours by position lie as neighbours in the tensor, in one document."""
    positions = torch.atleast_2d(tokens.host.positions)
    real = positions != NOBODY
    both = real[:, 1:] & real[:, :-1]
    starts = real[:, :1].sum(1) + (real[:, 1:] & ~real[:, :-1]).sum(1)
    together = bool((positions.diff(dim=1)[both] == 1).all()) and bool((starts <= 1).all())
    return tokens.documents is None and together


# A recurrent layer with the call of an attention layer: what attention is compared with.

Cell = Literal["elman", "gru", "lstm"]
"""h_t = tanh(W x_t + U h_{t-1} + b), or with the gates of nn.GRU or nn.LSTM."""

_GATES = {"elman": 1, "gru": 3, "lstm": 4}
_CELLS: dict[str, Callable[..., nn.RNNBase]] = {"elman": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


@final
class Recurrent(nn.Module, Countable):
    """h_t = cell(x_t, h_{t-1}), one token after the other: x (B, L, width) to (B, L, width).

    cell: "elman" (tanh), "gru" or "lstm", torch's own, in ``cell``; layers: how many, one on the
    other. Tokens are read in the order of their positions, from h_0 = 0; nobody (-1) is skipped
    and gets 0. No past output depends on the future. L sequential steps of O(width²), and a
    longest path of L. Elman 1990; Hochreiter & Schmidhuber 1997; Cho et al. 2014.

    Raises InvalidArgument for sizes below 1 and another cell, NotSupported for documents.
    """

    causality = "functional"

    def __init__(self, width: int, *, cell: Cell = "gru", layers: int = 1) -> None:
        super().__init__()
        check_sizes(width=width, layers=layers)
        if cell not in _CELLS:
            raise InvalidArgument(f"cell={cell!r}: it is one of {', '.join(_CELLS)}")
        self.width, self.gates = width, _GATES[cell]
        self.cell = _CELLS[cell](width, width, num_layers=layers, batch_first=True)

    def forward(self, x: Tensor, *, q_tokens: Tokens | None = None) -> Tensor:
        """(B, L, width) to the same. q_tokens: what stands in each slot; 0 … L-1 if not given."""
        check_input("x", x, self.width, next(self.cell.parameters()))
        order = order_of("a recurrent layer", x, q_tokens)
        if not x.numel():
            return x
        inputs = order.take(x, 1)
        out: Tensor = self.cell(inputs)[0] if inputs.shape[1] else inputs
        return order.put_back(out, 1)

    def work(self, asked: Asked) -> Work:
        """2 · width² for each gate of each token in each layer, in L · layers steps; see
        ``eyeline.cost``."""
        call = asked.without_heads("a recurrent layer", self.width)
        steps = call.length * self.cell.num_layers
        made = steps * self.gates * 2 * self.width**2
        return Work(
            call, 0, 0, made, made,
            numbers=2 * call.length * self.width + numbers_in(self), steps=steps,
        )  # fmt: skip

    def path(self, length: int) -> int:
        """From the first token to the last, one after another: L - 1; see ``max_path_length``."""
        return max(length - 1, 0)
