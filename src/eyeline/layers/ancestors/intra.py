"""LSTMN: a recurrent layer that looks at all it has kept, not only at the last (Cheng 2016)."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from eyeline.layers.checks import check_input, check_sizes
from eyeline.layers.ordering import order_of
from eyeline.planning.cost import Asked, Work, numbers_in
from eyeline.tokens import Tokens


@final
class LSTMN(nn.Module):
    """An LSTM whose last state is a weighted sum of all earlier ones, x (B, L, width) to h.

    a_i = vᵀ tanh(W_h h_i + W_x x_t + W_h̃ h̃_{t-1}), s = softmax(a) over i < t,
    [h̃_t; c̃_t] = Σ_{i<t} s_i [h_i; c_i],
    [i; f; o; ĉ] = [σ; σ; σ; tanh] (W [h̃_t; x_t] + b),
    c_t = f ⊙ c̃_t + i ⊙ ĉ_t,  h_t = o ⊙ tanh(c_t); h̃ and c̃ start as 0.

    Returns every h_t, (B, L, width). Parameters: ``tape`` W_h, ``own`` W_x, ``before`` W_h̃,
    ``score`` v, and ``gates`` W with b in the order i, f, o, ĉ. hidden: the width of v, width if
    not given.

    Tokens are read in the order of their positions; nobody (-1) is skipped and gets 0. No past
    output depends on the future. L sequential steps, L²·(hidden + 2 width) multiplications and
    as much memory in training. Cheng, Dong & Lapata 2016, "Long Short-Term Memory-Networks for
    Machine Reading".

    Raises InvalidArgument for sizes below 1, NotSupported for documents.
    """

    causality = "functional"

    def __init__(self, width: int, *, hidden: int | None = None) -> None:
        super().__init__()
        hidden = hidden if hidden is not None else width
        check_sizes(width=width, hidden=hidden)
        self.width = width
        self.tape = nn.Linear(width, hidden, bias=False)
        self.own = nn.Linear(width, hidden, bias=False)
        self.before = nn.Linear(width, hidden, bias=False)
        self.score = nn.Linear(hidden, 1, bias=False)
        self.gates = nn.Linear(2 * width, 4 * width)

    def forward(self, x: Tensor, *, q_tokens: Tokens | None = None) -> Tensor:
        """(B, L, width) to the same. q_tokens: what stands in each slot; 0 … L-1 if not given."""
        return self._run(x, q_tokens)[0]

    def weights(self, x: Tensor, *, q_tokens: Tokens | None = None) -> Tensor:
        """s, (B, L, L): how much of what it kept at slot j the token in slot i takes back."""
        order = order_of("an LSTMN", x, q_tokens)
        rows = self._run(x, q_tokens)[1]
        if not rows:
            return x.new_zeros(len(x), 0, 0)
        return order.back(order.back(torch.stack(rows, 1)).mT).mT

    def work(self, asked: Asked) -> Work:
        """hidden + 2 width for each pair of a token and an earlier one, 2 · hidden · width for W_h
        and W_x, hidden · width for W_h̃ but at the first, and 8 · width² for the gates; see
        ``eyeline.cost``."""
        call = asked.without_heads("an LSTMN", self.width)
        n, hidden = call.length, self.own.out_features
        pairs, after = n * (n - 1) // 2, max(n - 1, 0)
        once = (2 * n + after) * hidden * self.width + 8 * n * self.width**2
        made = once + pairs * (hidden + 2 * self.width)
        return Work(
            call, pairs, pairs, made, made,
            numbers=2 * n * self.width + numbers_in(self), steps=n,
        )  # fmt: skip

    def path(self, length: int) -> int:
        """1: a token takes from all before it at once; see ``max_path_length``."""
        return int(length > 1)

    def _run(self, x: Tensor, tokens: Tokens | None) -> tuple[Tensor, list[Tensor]]:
        check_input("x", x, self.width, self.own.weight)
        order = order_of("an LSTMN", x, tokens)
        if not x.shape[1]:
            return x, []
        inputs = order.take(x)
        own = self.own(inputs)
        summed = last = torch.zeros_like(inputs[:, 0])
        hidden: list[Tensor] = []
        cells: list[Tensor] = []
        keys: list[Tensor] = []
        looked: list[Tensor] = []
        for step, token in enumerate(inputs.unbind(1)):
            if step:
                shift = own[:, step] + self.before(summed)
                weight = self._weight(torch.stack(keys, 1), shift)
                summed, last = (
                    (weight[:, None] @ torch.stack(t, 1)).squeeze(1) for t in (hidden, cells)
                )
                looked.append(nn.functional.pad(weight, (0, x.shape[1] - step)))
            else:
                looked.append(token.new_zeros(len(x), x.shape[1]))
            h, c = self._cell(summed, last, token)
            hidden.append(h)
            cells.append(c)
            keys.append(self.tape(h))
        return order.back(torch.stack(hidden, 1)), looked

    def _weight(self, keys: Tensor, shift: Tensor) -> Tensor:
        """s (B, t) over the states kept so far."""
        score: Tensor = self.score((keys + shift[:, None]).tanh())
        return score.squeeze(-1).softmax(-1)

    def _cell(self, summed: Tensor, last: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        enter, forget, out, new = self.gates(torch.cat((summed, token), -1)).chunk(4, -1)
        cell = forget.sigmoid() * last + enter.sigmoid() * new.tanh()
        return out.sigmoid() * cell.tanh(), cell
