"""Weights without queries of their own: a sentence summed up, and two sentences compared."""

from __future__ import annotations

import math
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from eyeline.checks import check_sizes, probability
from eyeline.errors import NotSupported
from eyeline.exact import attention
from eyeline.layers.checks import check_input, check_tokens, padding
from eyeline.patterns import Full
from eyeline.planning.cost import Asked, Countable, Work, numbers_in
from eyeline.scores import OffsetBias
from eyeline.tokens import Tokens, default_tokens

# Structured self-attention: a sentence as a few weighted sums of its words (Lin et al. 2017).


class Structured(NamedTuple):
    """embedding M (B, hops, width); weights A (B, hops, L); penalty (B,): ‖AAᵀ - I‖²_F of each."""

    embedding: Tensor
    weights: Tensor
    penalty: Tensor


@final
class StructuredAttention(nn.Module, Countable):
    """A = softmax(W_2 tanh(W_1 Hᵀ)) over the words, M = A H, penalty = ‖AAᵀ - I‖²_F.

    H: (B, L, width), for example what a recurrent layer gives. W_1: (hidden, width), W_2: (hops,
    hidden), in the paper without biases: ``first`` and ``second``. Each hop is one weighting of
    the words; the penalty, added to the loss with a factor of its own, keeps hops from looking at
    the same ones, and single words from being shared out.

    Nobody (-1) gets weight 0; of an empty sentence A and M are 0. One set of weights serves any
    length, at hops · L · width multiplications; it has no causality. Lin et al. 2017, "A
    Structured Self-Attentive Sentence Embedding".

    Raises InvalidArgument for sizes below 1.
    """

    causality = "none"

    def __init__(self, width: int, hidden: int, hops: int) -> None:
        super().__init__()
        check_sizes(width=width, hidden=hidden, hops=hops)
        self.width = width
        self.first = nn.Linear(width, hidden, bias=False)
        self.second = nn.Linear(hidden, hops, bias=False)

    def forward(self, x: Tensor, *, q_tokens: Tokens | None = None) -> Structured:
        """(B, L, width) to the sentences' embeddings, weights and penalties."""
        check_input("x", x, self.width, self.first.weight)
        if q_tokens is None:
            weight = self._scores(x).softmax(-1)
        else:
            check_tokens("q_tokens", q_tokens, *x.shape[:2])
            unseen = padding(q_tokens, x.device)
            x = x.masked_fill(unseen[..., None], 0.0)
            score = self._scores(x).masked_fill(unseen[:, None], -math.inf)
            weight = score.softmax(-1).masked_fill(unseen[:, None], 0.0)  # NaN where all are
        identity = torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device)
        penalty = (weight @ weight.mT - identity).square().sum((1, 2))
        return Structured(weight @ x, weight, penalty)

    def work(self, asked: Asked) -> Work:
        """L · hidden · (width + hops) for the scores, L · hops · width for M, and L · hops² for the
        penalty; see ``eyeline.cost``."""
        call = asked.without_heads("structured self-attention", self.width)
        n, (hops, hidden) = call.length, self.second.weight.shape
        made = n * (hidden * (self.width + hops) + hops * self.width + hops**2)
        numbers = (n + hops) * self.width + numbers_in(self)
        return Work(call, n * hops, n * hops, made, made, numbers=numbers)

    def path(self, length: int) -> int:
        """Raises NotSupported: words become one matrix, and do not hear each other."""
        raise NotSupported("structured self-attention makes no tokens: words reach its matrix")

    def _scores(self, x: Tensor) -> Tensor:
        scores: Tensor = self.second(self.first(x).tanh()).mT
        return scores


@final
class Decomposable(nn.Module, Countable):
    """Attend, compare, aggregate: scores of ``classes`` relations between sentences a and b.

    attend:    e_ij = F(a_i)ᵀ F(b_j);  β_i = Σ_j softmax_j(e_ij) b_j,  α_j = Σ_i softmax_i(e_ij) a_i
    compare:   v_i = G([a_i; β_i]),  w_j = G([b_j; α_j])
    aggregate: H([Σ_i v_i; Σ_j w_j]), then one linear map to the classes.

    F, G, H: two layers with relu and dropout, ``attend``, ``compare`` and ``aggregate``, hidden
    wide. intra: each word first looks at its own sentence, f_ij = F'(x_i)ᵀ F'(x_j) + d_{j-i}, and
    becomes [x_i; Σ_j softmax_j(f_ij) x_j]; the trained d is one number from ``distance`` on, in
    each direction (``bias``, an OffsetBias). Without it the order of words does not matter.

    a (B, La, width), b (B, Lb, width) to (B, classes). Nobody (-1) is looked at by nobody and
    counts 0 in the sums. La · Lb · (hidden + width) multiplications each way. Parikh et al. 2016,
    "A Decomposable Attention Model for Natural Language Inference".

    Raises InvalidArgument for sizes below 1 and a dropout that is not a probability below 1.
    """

    causality = "none"

    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        classes: int,
        intra: bool = False,
        distance: int = 10,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_sizes(width=width, hidden=hidden, classes=classes, distance=distance)
        dropout = probability("dropout", dropout)
        self.width = width
        self.intra = _network(width, hidden, dropout) if intra else None
        self.bias = OffsetBias(1, distance) if intra else None
        word = 2 * width if intra else width
        self.attend = _network(word, hidden, dropout)
        self.compare = _network(2 * word, hidden, dropout)
        self.aggregate = _network(2 * hidden, hidden, dropout)
        self.classify = nn.Linear(hidden, classes)

    def forward(
        self,
        a: Tensor,
        b: Tensor,
        *,
        a_tokens: Tokens | None = None,
        b_tokens: Tokens | None = None,
    ) -> Tensor:
        """(B, La, width) and (B, Lb, width) to (B, classes). Tokens: 0, 1, … each if not given."""
        a, a_tokens = self._words("a", a, a_tokens)
        b, b_tokens = self._words("b", b, b_tokens)
        key_a, key_b = self.attend(a), self.attend(b)
        beta = _looked(key_a, key_b, b, tokens=(a_tokens, b_tokens))
        alpha = _looked(key_b, key_a, a, tokens=(b_tokens, a_tokens))
        sums = self._compared(a, beta, a_tokens), self._compared(b, alpha, b_tokens)
        scores: Tensor = self.classify(self.aggregate(torch.cat(sums, -1)))
        return scores

    def work(self, asked: Asked) -> Work:
        """Of two sentences of L words each: F and G for each word, L² · (hidden + 2 word) for e, β
        and α, H and the classes; with intra also F' and L² · (hidden + width) for each sentence. e
        is computed for β and for α. See ``eyeline.cost``."""
        call = asked.without_heads("decomposable attention", self.width)
        n, (classes, hidden) = call.length, self.classify.weight.shape
        word = 2 * self.width if self.intra is not None else self.width
        made = n * (_products(word, hidden) + _products(2 * word, hidden)) * 2
        made += _products(2 * hidden, hidden) + hidden * classes + n**2 * (hidden + 2 * word)
        pairs = n**2
        if self.intra is not None:
            made += 2 * n * _products(self.width, hidden) + 2 * n**2 * (hidden + self.width)
            pairs += 2 * n**2
        numbers = 2 * n * self.width + classes + numbers_in(self)
        return Work(call, pairs, pairs + n**2, made, made + n**2 * hidden, numbers=numbers, steps=2)

    def path(self, length: int) -> int:
        """Raises NotSupported: words become one vector, and do not hear each other."""
        raise NotSupported("decomposable attention makes no tokens: words reach its one answer")

    def _words(self, name: str, x: Tensor, tokens: Tokens | None) -> tuple[Tensor, Tokens]:
        """The words, nobody as true zeros, with what they saw of their own sentence."""
        check_input(name, x, self.width, self.classify.weight)
        if tokens is None:
            tokens = default_tokens(x.shape[1], x.shape[1])[0]
        check_tokens(f"{name}_tokens", tokens, *x.shape[:2])
        x = x.masked_fill(padding(tokens, x.device)[..., None], 0.0)
        if self.intra is None:
            return x, tokens
        key = self.intra(x)
        own = _looked(key, key, x, tokens=(tokens, tokens), bias=self.bias)
        return torch.cat((x, own), -1), tokens

    def _compared(self, own: Tensor, other: Tensor, tokens: Tokens) -> Tensor:
        compared: Tensor = self.compare(torch.cat((own, other), -1))
        return compared.masked_fill(padding(tokens, own.device)[..., None], 0.0).sum(1)


def _looked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    tokens: tuple[Tokens, Tokens],
    bias: OffsetBias | None = None,
) -> Tensor:
    """softmax(query keyᵀ + bias) value, as one head with no scale."""
    q, k, v = (x[:, None] for x in (query, key, value))
    out = attention(
        q, k, v, Full(), score_mod=bias, scale=1.0, q_tokens=tokens[0], k_tokens=tokens[1]
    )
    return out.squeeze(1)


def _products(inward: int, hidden: int) -> int:
    """The multiplications of a network for one row."""
    return inward * hidden + hidden**2


def _network(inward: int, hidden: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        nn.Dropout(dropout), nn.Linear(inward, hidden), nn.ReLU(),
        nn.Dropout(dropout), nn.Linear(hidden, hidden), nn.ReLU(),
    )  # fmt: skip
