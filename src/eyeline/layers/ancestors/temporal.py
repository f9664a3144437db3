"""Attention that looks less at what it has looked at, and at what it has written (Paulus 2017)."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from eyeline.checks import check_sizes, wide_dtype
from eyeline.errors import NotSupported
from eyeline.exact import attention, attention_weights
from eyeline.layers.checks import check_input, check_tokens, order_of, padding
from eyeline.patterns import Causal, Window
from eyeline.planning.cost import Asked, Countable, Work, numbers_in, of_pattern
from eyeline.tokens import Tokens

# LSTMN: a recurrent layer that looks at all it has kept, not only at the last (Cheng 2016).


@final
class LSTMN(nn.Module, Countable):
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
        return order.put_back(order.put_back(torch.stack(rows, 1), 1), 2)

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

    def square_bytes(self, length: int, *, backward: bool) -> int:
        """All states so far, stacked anew for each token."""
        return length**2 * 4 * (1 + (2 * self.width if backward else 0))

    def path(self, length: int) -> int:
        """1: a token takes from all before it at once; see ``max_path_length``."""
        return int(length > 1)

    def _run(self, x: Tensor, tokens: Tokens | None) -> tuple[Tensor, list[Tensor]]:
        check_input("x", x, self.width, self.own.weight)
        order = order_of("an LSTMN", x, tokens)
        inputs = order.take(x, 1)
        if not inputs.shape[1]:
            return order.put_back(inputs, 1), []
        own = self.own(inputs)
        summed = last = torch.zeros_like(inputs[:, 0])
        hidden: list[Tensor] = []
        cells: list[Tensor] = []
        keys: list[Tensor] = []
        looked: list[Tensor] = []
        count = inputs.shape[1]
        for step, token in enumerate(inputs.unbind(1)):
            if step:
                shift = own[:, step] + self.before(summed)
                weight = self._weight(torch.stack(keys, 1), shift)
                summed, last = (
                    (weight[:, None] @ torch.stack(t, 1)).squeeze(1) for t in (hidden, cells)
                )
                looked.append(nn.functional.pad(weight, (0, count - step)))
            else:
                looked.append(token.new_zeros(len(x), count))
            h, c = self._cell(summed, last, token)
            hidden.append(h)
            cells.append(c)
            keys.append(self.tape(h))
        return order.put_back(torch.stack(hidden, 1), 1), looked

    def _weight(self, keys: Tensor, shift: Tensor) -> Tensor:
        """s (B, t) over the states kept so far."""
        score: Tensor = self.score((keys + shift[:, None]).tanh())
        return score.squeeze(-1).softmax(-1)

    def _cell(self, summed: Tensor, last: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        enter, forget, out, new = self.gates(torch.cat((summed, token), -1)).chunk(4, -1)
        cell = forget.sigmoid() * last + enter.sigmoid() * new.tanh()
        return out.sigmoid() * cell.tanh(), cell


# The logarithm of a sum of nothing. Finite, since -inf - -inf has no derivative.
_NOTHING = -1e30
_EARLIER = Causal() & ~Window(0, 0)


class TemporalState(NamedTuple):
    """total (B, S): log Σ exp(e_ji) over all decoder steps j so far; -1e30 before the first."""

    total: Tensor


class Looked(NamedTuple):
    """context c (B, T, memory_width), weights α (B, T, S), and the state after the last step."""

    context: Tensor
    weights: Tensor
    state: TemporalState


@final
class IntraTemporal(nn.Module, Countable):
    """Encoder attention in which a word's score is divided by what it was given before.

    e_ti = h_tᵀ W m_i;  e'_ti = exp(e_ti) at the first step, exp(e_ti) / Σ_{j<t} exp(e_ji) after;
    α_ti = e'_ti / Σ_i e'_ti;  c_t = Σ_i α_ti m_i.

    Queries h (B, T, width) are decoder states in the order of their positions, memory m (B, S,
    memory_width) the encoder's; W is ``project``. All is computed of logarithms, log e' = e -
    log Σ exp(e), so no score is too large. Many steps at once and step by step with ``state``
    give the same. Nobody (-1) is not looked at, looks at nobody, gets 0, and adds nothing to the
    sums. No past output depends on later queries. T·S·(width + memory_width) multiplications;
    memory T·S. Paulus, Xiong & Socher 2017, "A Deep Reinforced Model for Abstractive
    Summarization".

    Raises InvalidArgument for sizes below 1, NotSupported for documents.
    """

    causality = "functional"

    def __init__(self, width: int, *, memory_width: int | None = None) -> None:
        super().__init__()
        memory_width = memory_width if memory_width is not None else width
        check_sizes(width=width, memory_width=memory_width)
        self.width, self.memory_width = width, memory_width
        self.project = nn.Linear(memory_width, width, bias=False)

    def forward(
        self,
        query: Tensor,
        memory: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
        state: TemporalState | None = None,
    ) -> Looked:
        """(B, T, width) and (B, S, memory_width) to contexts. state: None before the first step."""
        check_input("query", query, self.width, self.project.weight)
        check_input("memory", memory, self.memory_width, self.project.weight)
        order = order_of("intra-temporal attention", query, q_tokens)
        unseen = _unseen(memory, k_tokens)
        memory = memory.masked_fill(unseen[..., None], 0.0)
        # Sums over many steps, and the logarithm of nothing, are too large for half types.
        wide = wide_dtype(query)
        score = (order.take(query, 1) @ self.project(memory).to(query.dtype).mT).to(wide)
        counted = score if order.whole else score.masked_fill(~order.real[..., None], _NOTHING)
        start = state.total if state is not None else torch.full_like(score[:, 0], _NOTHING)
        sums = torch.cat((start[:, None], counted), 1).logcumsumexp(1)
        before = sums[:, :-1]
        score = score - before.masked_fill(before < _NOTHING / 2, 0.0)
        weight = score.masked_fill(unseen[:, None], _NOTHING).softmax(-1)
        weight = order.put_back(weight.masked_fill(unseen[:, None], 0.0), 1).to(memory.dtype)
        return Looked(weight @ memory, weight, TemporalState(sums[:, -1]))

    def work(self, asked: Asked) -> Work:
        """As many states as words: L · width · memory_width for W, L² · (width + memory_width) for
        scores and contexts. Each step waits for the sums of those before; see ``eyeline.cost``."""
        call = asked.without_heads("intra-temporal attention", self.width)
        n, pairs = call.length, call.length**2
        made = n * self.width * self.memory_width + pairs * (self.width + self.memory_width)
        numbers = n * (self.width + 2 * self.memory_width) + numbers_in(self)
        return Work(call, pairs, pairs, made, made, numbers=numbers, steps=max(n, 1))

    def square_bytes(self, length: int, *, backward: bool) -> int:
        """Scores, their sums so far, weights, and gradients."""
        return length**2 * 4 * (8 if backward else 5)

    def path(self, length: int) -> int:
        """1: a state takes from all words at once; see ``max_path_length``."""
        return int(length > 1)


@final
class IntraDecoder(nn.Module, Countable):
    """e_tt' = h_tᵀ W h_t' over the decoder states before t; c_t = Σ_t' softmax(e)_t' h_t'; c_1 = 0.

    It is ``attention`` under causal & ~window(0, 0) with one head and no scale: a query sees only
    what was written before it. W is ``project``. Step by step the last state is the query and
    all states so far are the keys. Nobody (-1) is not seen and gets 0. Paulus et al. 2017.

    Raises InvalidArgument for a width below 1.
    """

    causality = "functional"

    def __init__(self, width: int) -> None:
        super().__init__()
        check_sizes(width=width)
        self.width = width
        self.project = nn.Linear(width, width, bias=False)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> Tensor:
        """(B, T, width), the last of key (B, S, width) or the keys themselves, to (B, T, width)."""
        q, k, k_tokens = self._heads(query, key, q_tokens, k_tokens)
        out = attention(
            q,
            self.project(k).to(k.dtype),
            k,
            _EARLIER,
            scale=1.0,
            q_tokens=q_tokens,
            k_tokens=k_tokens,
        )
        return out.squeeze(1)

    def work(self, asked: Asked) -> Work:
        """L · width² for W, and 2 · width for each pair of a state and an earlier one; see
        ``eyeline.cost``."""
        call = asked.without_heads("an intra-decoder", self.width)
        found, once = of_pattern(_EARLIER, call), call.length * self.width**2
        return replace(
            found,
            multiplications=found.multiplications + once,
            computed_multiplications=found.computed_multiplications + once,
            numbers=2 * call.length * self.width + numbers_in(self),
            backward=None,
        )

    def path(self, length: int) -> int:
        """1: a state takes from all before it at once; see ``max_path_length``."""
        return int(length > 1)

    def weights(
        self,
        query: Tensor,
        key: Tensor | None = None,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> Tensor:
        """softmax(e), (B, T, S)."""
        q, k, k_tokens = self._heads(query, key, q_tokens, k_tokens)
        out = attention_weights(
            q,
            self.project(k).to(k.dtype),
            _EARLIER,
            scale=1.0,
            q_tokens=q_tokens,
            k_tokens=k_tokens,
        )
        return out.squeeze(1)

    def _heads(
        self, query: Tensor, key: Tensor | None, q_tokens: Tokens | None, k_tokens: Tokens | None
    ) -> tuple[Tensor, Tensor, Tokens | None]:
        """Both as one head; the keys' tokens are the queries' where they are the same."""
        key = key if key is not None else query
        for name, x in (("query", query), ("key", key)):
            check_input(name, x, self.width, self.project.weight)
        k_tokens = k_tokens if k_tokens is not None or key is not query else q_tokens
        return query[:, None], key[:, None], k_tokens


def _unseen(memory: Tensor, tokens: Tokens | None) -> Tensor:
    """bool (1 or B, S)."""
    if tokens is None:
        return torch.zeros(1, memory.shape[1], dtype=torch.bool, device=memory.device)
    check_tokens("k_tokens", tokens, *memory.shape[:2])
    if tokens.documents is not None:
        raise NotSupported("intra-temporal attention would carry one document to the next")
    return padding(tokens, memory.device)
