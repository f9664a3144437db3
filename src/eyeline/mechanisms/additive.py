"""Additive attention: a small network scores each pair of a query and a key."""

from __future__ import annotations

from typing import NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from eyeline.budgets import at_once, budgets
from eyeline.checks import check_size, probability, widened
from eyeline.errors import InvalidArgument
from eyeline.exact.call import PatternLike, as_pattern, make_request
from eyeline.kernels.request import Request, mask_of
from eyeline.mechanisms.base import Heads, Mechanism, register
from eyeline.patterns import Full, Pattern
from eyeline.planning.cost import Asked, Work, numbers_in, of_pattern
from eyeline.tokens import Tokens


def additive_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: PatternLike = Full(),
    *,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    dropout_p: float = 0.0,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
) -> Tensor:
    """out[i] = Σ_j softmax_j(w_vᵀ tanh(W_q query[i] + W_k key[j])) · value[j].

    query: (B, H, L, Eq); key: (B, Hk, S, Ek), which may differ in width; value: (B, Hk, S, Ev).
    w_q: (hidden, Eq), w_k: (hidden, Ek), w_v: (hidden,), for all heads alike, or with one more
    dimension H in front, each head its own. Returns (B, H, L, Ev). pattern, tokens and queries
    that may look at nobody are as in ``attention``; dropout_p is that of weights.

    Every pair has hidden units of its own, so time is L·S·hidden whatever the pattern; they are
    computed for some queries at a time, forward and backward, and memory is L·S and theirs.

    Raises InvalidArgument for sizes, dtypes or tokens that do not fit together.
    Bahdanau et al. 2015, "Neural machine translation by jointly learning to align and translate".
    """
    dtype = _dtype(value)
    weights = AdditiveWeights(w_q, w_k, w_v)
    with torch.autocast(query.device.type, enabled=False):
        request = _request(query, key, value, pattern, weights, dropout_p, q_tokens, k_tokens)
        return _by_queries(request, widened(w_v), dropout_p).to(dtype)


def additive_attention_weights(
    query: Tensor,
    key: Tensor,
    pattern: PatternLike = Full(),
    *,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    q_tokens: Tokens | None = None,
    k_tokens: Tokens | None = None,
) -> Tensor:
    """weight[i, j] = softmax_j(w_vᵀ tanh(W_q query[i] + W_k key[j])): (B, H, L, S).

    Exactly 0 where i may not look at j; each row sums to 1, or to 0 for a query that may look at
    nobody. In the dtype of the query. Arguments and errors are those of ``additive_attention``.
    """
    dtype = _dtype(query)
    weights = AdditiveWeights(w_q, w_k, w_v)
    with torch.autocast(query.device.type, enabled=False):
        request = _request(query, key, key, pattern, weights, 0.0, q_tokens, k_tokens)
        return _weights(request.query, request.key, widened(w_v), mask_of(request)).to(dtype)


class AdditiveWeights(NamedTuple):
    """W_q (…, hidden, Eq), W_k (…, hidden, Ek) and w_v (…, hidden); … is nothing, or the heads."""

    q: Tensor
    k: Tensor
    v: Tensor


def _request(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: PatternLike,
    weights: AdditiveWeights,
    dropout_p: float,
    q_tokens: Tokens | None,
    k_tokens: Tokens | None,
) -> Request:
    """A request with W_q query and W_k key in place of queries and keys, all in float32 or wider.

    Two such rows meet in tanh, not in a product; but sizes, pattern and tokens are checked alike.
    """
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.dim() != 4:
            raise InvalidArgument(f"{name} {tuple(x.shape)} must be (batch, heads, length, width)")
    heads, shared = query.shape[1], key.shape[1]
    _check_weights(weights, heads, query.shape[3], key.shape[3])
    if shared and heads > shared and heads % shared == 0:
        key, value = (x.repeat_interleave(heads // shared, dim=1) for x in (key, value))
    return make_request(
        widened(query) @ widened(weights.q).transpose(-2, -1),
        widened(key) @ widened(weights.k).transpose(-2, -1),
        widened(value),
        pattern,
        scale=1.0,
        dropout_p=dropout_p,
        q_tokens=q_tokens,
        k_tokens=k_tokens,
    )


def _check_weights(weights: AdditiveWeights, heads: int, q_width: int, k_width: int) -> None:
    hidden = weights.v.shape[-1] if weights.v.dim() else 0
    wanted = {"w_q": (hidden, q_width), "w_k": (hidden, k_width), "w_v": (hidden,)}
    for (name, shape), x in zip(wanted.items(), weights, strict=True):
        if tuple(x.shape) not in (shape, (heads, *shape)):
            raise InvalidArgument(
                f"{name} {tuple(x.shape)}: with w_v {tuple(weights.v.shape)} and widths "
                f"{q_width} and {k_width} it is {shape}, or {(heads, *shape)} for {heads} heads"
            )


def _by_queries(request: Request, w_v: Tensor, dropout_p: float) -> Tensor:
    """Some queries at a time; their hidden units are computed again in the backward pass."""
    query, key, value = request.query, request.key, request.value
    batch, heads, length, hidden = query.shape
    mask = mask_of(request)
    row = batch * heads * key.shape[2] * hidden * query.element_size()
    step = at_once(row, budgets.hidden)
    if step >= length:
        return _rows(query, key, value, w_v, mask, dropout_p)
    pieces = []
    for start in range(0, length, step):
        end = start + step
        inputs = query[:, :, start:end], key, value, w_v, mask[..., start:end, :], dropout_p
        # Dropout is drawn again alike: checkpoint keeps the state of torch's generator.
        pieces.append(checkpoint(_rows, *inputs, use_reentrant=False))
    return torch.cat(pieces, 2)


def _rows(
    query: Tensor, key: Tensor, value: Tensor, w_v: Tensor, mask: Tensor, dropout_p: float
) -> Tensor:
    weight = _weights(query, key, w_v, mask)
    return functional.dropout(weight, dropout_p, training=dropout_p > 0) @ value


def _weights(query: Tensor, key: Tensor, w_v: Tensor, mask: Tensor) -> Tensor:
    """(B, H, R, hidden) and (B, H, S, hidden) to (B, H, R, S)."""
    units = (query.unsqueeze(3) + key.unsqueeze(2)).tanh()
    each = w_v if w_v.dim() == 1 else w_v[:, None, :, None]
    score = units @ each if w_v.dim() == 1 else (units @ each).squeeze(-1)
    # An empty row is given real scores first, so that no derivative meets inf - inf.
    some = mask.any(-1, keepdim=True)
    score = score.masked_fill(~(mask | ~some), -torch.inf)
    return score.softmax(-1).masked_fill(~mask, 0.0)


def _dtype(x: Tensor) -> torch.dtype:
    """The dtype of the result: autocast's where it is enabled."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


# Additive attention under a pattern, as a module that a layer can be given.


@register("additive")
@final
class Additive(Mechanism):
    """head_h: softmax_j(w_vᵀ tanh(W_q query[i] + W_k key[j])) · value[j], W and w for each head.

    num_heads: query heads; key heads may be shared by several. head_dim: the width of queries and
    keys. hidden: the width of the network, head_dim if not given. Parameters w_q and w_k
    (num_heads, hidden, head_dim), w_v (num_heads, hidden), drawn as nn.Linear draws its own.
    dropout: of weights, while training. Causality is the pattern's own, and it decodes from a
    cache, as ``Exact`` does. Time is L·S·hidden. Bahdanau et al. 2015.

    Raises InvalidArgument for sizes below 1 and a dropout that is not a probability below 1.
    """

    pattern: Pattern

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        hidden: int | None = None,
        pattern: PatternLike = Full(),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        hidden = hidden if hidden is not None else head_dim
        sizes = {"num_heads": num_heads, "head_dim": head_dim, "hidden": hidden}
        for name, size in sizes.items():
            check_size(f"additive {name}", size)
        self.pattern = as_pattern(pattern)
        self.dropout = probability("dropout", dropout)
        self.w_q = nn.Parameter(torch.empty(num_heads, hidden, head_dim))
        self.w_k = nn.Parameter(torch.empty(num_heads, hidden, head_dim))
        self.w_v = nn.Parameter(torch.empty(num_heads, hidden))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the network anew: uniform within 1/√(its inputs), as nn.Linear."""
        for weight in (self.w_q, self.w_k, self.w_v):
            bound = weight.shape[-1] ** -0.5
            nn.init.uniform_(weight, -bound, bound)

    def check_heads(self, heads: Heads) -> None:
        """Raise InvalidArgument if it was made for other heads."""
        self._check_made(heads, num_heads=self.w_q.shape[0], head_dim=self.w_q.shape[2])
        super().check_heads(heads)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> Tensor:
        """(B, H, L, E), (B, Hk, S, E), (B, Hk, S, Ev) to (B, H, L, Ev)."""
        return additive_attention(
            query, key, value, self.pattern, w_q=self.w_q, w_k=self.w_k, w_v=self.w_v,
            dropout_p=self.dropout if self.training else 0.0, q_tokens=q_tokens, k_tokens=k_tokens,
        )  # fmt: skip

    def weights(
        self,
        query: Tensor,
        key: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> Tensor:
        """The weight of each pair, (B, H, L, S), before dropout."""
        return additive_attention_weights(
            query, key, self.pattern, w_q=self.w_q, w_k=self.w_k, w_v=self.w_v,
            q_tokens=q_tokens, k_tokens=k_tokens,
        )  # fmt: skip

    def work(self, asked: Asked) -> Work:
        """W_q query and W_k key for each query head, then hidden + Ev for each pair that looks.

        All pairs are computed, whatever the pattern. See ``eyeline.cost``.
        """
        heads, hidden, width = self.w_q.shape
        call = asked.known("additive", heads=heads, head_dim=width).call
        pairs = of_pattern(self.pattern, call).pairs
        every = heads * call.length * call.key_length
        once = heads * (call.length + call.key_length) * hidden * width
        each = hidden + call.value_dim
        return Work(
            call, pairs, every, once + pairs * each, once + every * each,
            numbers=call.numbers + numbers_in(self),
        )  # fmt: skip

    def square_bytes(self, length: int, *, backward: bool) -> int:
        """Scores and weights, and the gradients of both."""
        return length**2 * self.w_q.shape[0] * 4 * (4 if backward else 2)

    def extra_repr(self) -> str:
        heads, hidden, width = self.w_q.shape
        return f"num_heads={heads}, head_dim={width}, hidden={hidden}, {self.pattern}"
