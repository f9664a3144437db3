"""Attention over k learned sums of all keys and values: time linear in the length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from eyeline.checks import check_size, probability
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.exact import attention, attention_weights
from eyeline.exact.call import Call, PatternLike, as_pattern, check_call
from eyeline.mechanisms.base import Heads, Mechanism, ProjectsLast, register
from eyeline.memory import traced
from eyeline.patterns import Full, Pattern
from eyeline.planning.cost import Asked, Work, numbers_in
from eyeline.tokens import Tokens, default_tokens
from eyeline.tokens.ordering import Ordering, real_slots, remembered_by_tokens

Sharing = Literal["none", "heads", "key_value"]
"""Which projections are one: each head has two of its own; all heads share two; or they share one
for keys and values."""

_SHARING = ("none", "heads", "key_value")


@register("linformer")
@final
class Linformer(Mechanism, ProjectsLast):
    """softmax(Q (E K)ᵀ/√d) (F V): the keys are k learned sums Σ_j E[:, position(j)] key[j].

    length: the longest sequence, up to which columns are trained; a shorter one uses those of its
    positions. k: the number of sums. E, F: (num_kv_heads, k, length), or (1, k, length) where
    heads share them; ``key_weight`` and ``value_weight``, drawn as nn.Linear(length, k) draws its
    own. In cross attention they run over the memory.

    sharing: "none"; "heads": one E and one F for all heads; "key_value": one E = F for all heads.
    Sharing across layers is one module given to several layers. dropout: of weights, in training.

    Multiplications, forward: S·k·(d + d′) for each key head and L·k·(d + d′) for each query head,
    instead of L·S·(d + d′). Parameters: 2·k·length, times num_kv_heads where heads do not share.

    Pads (-1) add nothing, and wherever they lie the result is the same. A sum holds tokens of
    all positions, so no causality ("none") and no pattern but Full() can be honoured: they are
    refused (NotSupported), as are documents and a cache. Wang et al. 2020.

    Raises InvalidArgument for sizes below 1, another word for sharing, a dropout that is not a
    probability below 1, positions from ``length`` on, and two tokens at one position.
    """

    causality = "none"
    pattern: Pattern
    no_cache = "its sums hold all tokens, later ones too: read the whole text at once"

    def __init__(
        self,
        length: int,
        k: int,
        *,
        num_kv_heads: int,
        head_dim: int,
        sharing: Sharing | None = "heads",
        pattern: PatternLike = Full(),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        sizes = {"length": length, "k": k, "num_kv_heads": num_kv_heads, "head_dim": head_dim}
        for name, size in sizes.items():
            check_size(f"linformer {name}", size)
        sharing = sharing if sharing is not None else "none"  # the word none reads as None
        if sharing not in _SHARING:
            raise InvalidArgument(
                f"linformer sharing={sharing!r}: it is {', '.join(_SHARING)}; layers share by "
                "being given one and the same module"
            )
        self.pattern = _only_full(pattern)
        self.length, self.k, self.sharing = length, k, sharing
        self.num_kv_heads, self.head_dim = num_kv_heads, head_dim
        self.dropout = probability("dropout", dropout)
        shape = (num_kv_heads if sharing == "none" else 1, k, length)
        self.key_weight = nn.Parameter(torch.empty(shape))
        own = None if sharing == "key_value" else nn.Parameter(torch.empty(shape))
        self.value_weight: nn.Parameter | None
        self.register_parameter("value_weight", own)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the projections anew: uniform within 1/√length."""
        for weight in self.parameters():
            nn.init.uniform_(weight, -(self.length**-0.5), self.length**-0.5)

    @classmethod
    def fitted(cls, options: Mapping[str, Any], length: int) -> dict[str, Any]:
        """Made for the length."""
        return {"length": length, **options}

    def check_heads(self, heads: Heads) -> None:
        """Raise InvalidArgument if it was made for other heads."""
        self._check_made(heads, num_kv_heads=self.num_kv_heads, head_dim=self.head_dim)

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
        call, k = self._checked(query, key, value, q_tokens, k_tokens)
        keys, values = self.sums(call.key, k), self.sums(call.value, k, of_values=True)
        return self.over(call.query, keys, values, q_tokens=q_tokens)

    def weights_of_sums(
        self,
        query: Tensor,
        key: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> Tensor:
        """The weight of each sum, (B, H, L, k), before dropout."""
        call, k = self._checked(query, key, key, q_tokens, k_tokens)
        queries, sums = self._asking(q_tokens)
        return attention_weights(
            call.query, self.sums(call.key, k), q_tokens=queries, k_tokens=sums
        )

    def sums(self, x: Tensor, tokens: Tokens | None, *, of_values: bool = False) -> Tensor:
        """E x, or F x of_values: (B, Hk, S, width) to (B, Hk, k, width).

        Where heads share E and F, x may have another number of heads: the inputs of a layer are
        one. tokens: what stands in its slots; 0 … S-1 if None.
        """
        weight = self.value_weight if of_values and self.value_weight is not None else None
        weight = weight if weight is not None else self.key_weight
        if tokens is not None:
            x = _at_positions(tokens, self.length, x.device).take(x, 2)
        elif x.shape[2] > self.length:
            raise InvalidArgument(
                f"{x.shape[2]} keys, and this linformer has columns for {self.length}: make it "
                "with a larger length and train it"
            )
        columns = weight[:, :, : x.shape[2]].to(x.dtype)
        if len(columns) == 1:  # one product for all heads, and so is its gradient
            return torch.einsum("kn,bhne->bhke", columns[0], x)
        return torch.einsum("hkn,bhne->bhke", columns, x)

    def project_first(self, key: nn.Linear, value: nn.Linear) -> ProjectsLast | None:
        """Itself, where summing up first is cheaper: S·k·d, against S·d·d′ + S·k·d′ afterwards.

        Heads must share the sums, which is when E (X W) = (E X) W.
        """
        if self.sharing == "none":
            return None
        inward = self.k * (key.in_features + value.in_features)
        outward = ((x.in_features + self.k) * x.out_features for x in (key, value))
        return self if inward < sum(outward) else None

    def summed(
        self,
        inputs: tuple[Tensor, Tensor],
        projections: tuple[nn.Linear, nn.Linear],
        tokens: Tokens | None,
    ) -> tuple[Tensor, Tensor]:
        """E (X W + 1 bᵀ) = (E X) W + (E 1) bᵀ of what keys and values are made of."""
        if tokens is not None:
            check_keys("linformer", tokens)
        keys = self.sums(inputs[0][:, None], tokens)
        same = inputs[1] is inputs[0] and self.sharing == "key_value"
        values = keys if same else self.sums(inputs[1][:, None], tokens, of_values=True)
        ones = torch.ones_like(inputs[0][:, None, :, :1])
        counts = [self.sums(ones, tokens, of_values=x) for x in (False, True)]
        return (
            _projected(projections[0], keys[:, 0], counts[0][:, 0]),
            _projected(projections[1], values[:, 0], counts[1][:, 0]),
        )

    def over(
        self, query: Tensor, keys: Tensor, values: Tensor, *, q_tokens: Tokens | None
    ) -> Tensor:
        """softmax(query keysᵀ/√d) values over sums that were made: (B, H, L, Ev)."""
        queries, sums = self._asking(q_tokens)
        p = self.dropout if self.training else 0.0
        return attention(query, keys, values, dropout_p=p, q_tokens=queries, k_tokens=sums)

    def work(self, asked: Asked) -> Work:
        """S·k·(E + Ev) for each key head, and L·k·(E + Ev) for each query head; see
        ``eyeline.cost``."""
        asked = asked.known("linformer", kv_heads=self.num_kv_heads, head_dim=self.head_dim)
        call = (asked if asked.heads is not None else replace(asked, heads=self.num_kv_heads)).call
        if call.key_length > self.length:
            raise InvalidArgument(f"{call.key_length} keys: this linformer goes to {self.length}")
        looking = call.heads * call.length * self.k
        sums = call.kv_heads * call.key_length * self.k
        both = (looking + sums) * call.products
        return Work(call, looking, looking, both, both, numbers=call.numbers + numbers_in(self))

    def _checked(
        self, query: Tensor, key: Tensor, value: Tensor, q: Tokens | None, k: Tokens | None
    ) -> tuple[Call, Tokens | None]:
        """The call, and the keys' tokens, if there are any."""
        call = check_call(query, key, value, self.pattern, scale=None, q_tokens=q, k_tokens=k)
        self.check_heads(Heads.of(query, key))
        if call.tokens is None:
            return call, None
        check_keys("linformer", *call.tokens)
        return call, call.tokens[1]

    def _asking(self, tokens: Tokens | None) -> tuple[Tokens | None, Tokens | None]:
        """Tokens of queries and sums, where some queries are nobody's; sums stand nowhere."""
        if tokens is None or real_slots(tokens) is None:
            return None, None
        return tokens.bare, default_tokens(self.k, self.k)[0]

    def extra_repr(self) -> str:
        return f"length={self.length}, k={self.k}, sharing={self.sharing!r}"


def _projected(projection: nn.Linear, sums: Tensor, count: Tensor) -> Tensor:
    """The layer's own projection adds its bias once, and each sum needs it ``count`` times."""
    out: Tensor = projection(sums)
    return out if projection.bias is None else out + (count - 1) * projection.bias


def _only_full(pattern: PatternLike) -> Full:
    rule = as_pattern(pattern)
    if not isinstance(rule, Full):
        raise NotSupported(
            f"linformer looks at sums of all keys and cannot honour {rule}: full() only; for "
            "causal patterns there are compressed(…) and linear(…)"
        )
    return rule


@remembered_by_tokens
def _at_positions(tokens: Tokens, limit: int, device: torch.device) -> Ordering:
    """Place p holds the token that stands at position p; there are 1 + the highest position."""
    positions = torch.atleast_2d(tokens.host.positions)
    length = int(positions.max()) + 1 if positions.numel() else 0
    if length > limit:
        raise InvalidArgument(
            f"a key stands at position {length - 1}, and this was made for lengths up to {limit}: "
            "make it with a larger length and train it"
        )
    return Ordering.placed(positions, length).to(device)


def check_keys(name: str, *tokens: Tokens) -> None:
    """Raise NotSupported for packed documents, which fewer keys would mix, and inside a graph."""
    if traced():
        raise NotSupported(
            "fewer keys are made by looking up where tokens stand, which a graph does not know "
            "before it runs: compile with fullgraph=False, and these layers run as they are"
        )
    if any(each.documents is not None for each in tokens):
        raise NotSupported(f"{name} sums over keys of several documents: give one document a row")
