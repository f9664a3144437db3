"""A recurrent layer with the call of an attention layer: what attention is compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, final

from torch import Tensor, nn

from eyeline.errors import InvalidArgument
from eyeline.layers.checks import check_input, check_sizes
from eyeline.layers.ordering import order_of
from eyeline.planning.cost import Asked, Work, numbers_in
from eyeline.tokens import Tokens

Cell = Literal["elman", "gru", "lstm"]
"""h_t = tanh(W x_t + U h_{t-1} + b), or with the gates of nn.GRU or nn.LSTM."""

_GATES = {"elman": 1, "gru": 3, "lstm": 4}
_CELLS: dict[str, Callable[..., nn.RNNBase]] = {"elman": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


@final
class Recurrent(nn.Module):
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
        out: Tensor = self.cell(order.take(x))[0]
        return order.back(out)

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
