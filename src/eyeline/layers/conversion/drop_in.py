"""TorchAttention: the call and the parameters of nn.MultiheadAttention, under a pattern."""

from __future__ import annotations

from typing import NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from eyeline.budgets import budgets
from eyeline.checks import probability
from eyeline.errors import NotSupported
from eyeline.exact import attention
from eyeline.layers.conversion.masks import (
    Sizes,
    check_inputs,
    pattern_of_call,
    tokens_of_call,
)  # fmt: skip
from eyeline.mechanisms import Exact
from eyeline.mechanisms.extra import all_weights, looked
from eyeline.patterns import Pattern
from eyeline.tokens import Tokens

PARAMETERS = (
    "in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias",
    "bias_k", "bias_v",
)  # fmt: skip
_HOOKS = (
    "_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called",
    "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_backward_hooks",
    "_backward_pre_hooks",
)  # fmt: skip


class _Call(NamedTuple):
    """Heads (N, H, ·, E) and what the masks of one call mean."""

    query: Tensor
    key: Tensor
    value: Tensor
    pattern: Pattern
    q_tokens: Tokens | None
    k_tokens: Tokens | None


@final
class TorchAttention(nn.Module):
    """What nn.MultiheadAttention computes, over the pairs that a pattern and its masks allow.

    It holds the very Parameters of the module it was made of, under the same names: optimizers go
    on, and state dicts load both ways. It is called as that module is. In what it differs:

    - a query that may look at nobody gets 0 from attention, where torch gives NaN;
    - ``is_causal=True`` needs no attn_mask; a mask that forbids exactly the future is causal too,
      and costs no more;
    - weights are returned for at most 2^22 pairs of a head, and as they are before dropout;
    - a float mask may hold 0 and -inf only, and nested tensors are refused;
    - where queries and keys differ in number, a pattern that compares positions is refused.
    """

    in_proj_weight: Tensor | None
    q_proj_weight: Tensor
    k_proj_weight: Tensor
    v_proj_weight: Tensor
    in_proj_bias: Tensor | None
    bias_k: Tensor | None
    bias_v: Tensor | None

    def __init__(self, original: nn.MultiheadAttention, pattern: Pattern) -> None:
        super().__init__()
        # In a tuple, so that its parameters are not found a second time.
        self._original = (original,)
        self.pattern = pattern
        self.embed_dim, self.kdim, self.vdim = original.embed_dim, original.kdim, original.vdim
        self.num_heads, self.head_dim = original.num_heads, original.head_dim
        self.dropout = probability("dropout", original.dropout)
        self.batch_first = original.batch_first
        self.add_zero_attn = original.add_zero_attn
        for name in PARAMETERS:
            self.register_parameter(name, getattr(original, name))
        self.out_proj = original.out_proj
        self.train(original.training)
        # What torch's own encoder layer asks before it goes past its attention module.
        self._qkv_same_embed_dim = False

    def take_hooks(self) -> None:
        """Shares the hooks of the original: their handles remove them here too."""
        for name in _HOOKS:
            setattr(self, name, getattr(self._original[0], name))

    def restored(self) -> nn.MultiheadAttention:
        """The original, with the parameters as they are now."""
        original = self._original[0]
        for name in PARAMETERS:
            setattr(original, name, getattr(self, name))
        original.out_proj, original.dropout = self.out_proj, self.dropout
        return original.train(self.training)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """torch's arguments and results: (output, weights), weights None if not asked for."""
        widths = self.embed_dim, self.kdim, self.vdim
        check_inputs((query, key, value), widths, batch_first=self.batch_first)
        alone, same = query.dim() == 2, query is key and key is value
        query, key, value = (self._batch_first(x, alone=alone) for x in (query, key, value))
        sizes = Sizes(query.shape[0], self.num_heads, query.shape[1], key.shape[1], alone)
        if need_weights:
            _check_few(sizes)
        pattern = pattern_of_call(self.pattern, attn_mask, sizes, is_causal=is_causal)
        tokens = tokens_of_call(key_padding_mask, sizes)
        call = _Call(*self._heads(query, key, value, same=same), pattern, *tokens)
        out: Tensor = self.out_proj(self._looked(call).transpose(1, 2).flatten(2))
        weights = self._weights(call) if need_weights else None
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if alone:
            return out[0], None if weights is None else weights[0]
        return out if self.batch_first else out.transpose(0, 1), weights

    def _batch_first(self, x: Tensor, *, alone: bool) -> Tensor:
        if alone:
            return x.unsqueeze(0)
        return x if self.batch_first else x.transpose(0, 1)

    def _heads(
        self, query: Tensor, key: Tensor, value: Tensor, *, same: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The three inputs projected and cut into heads, (N, H, length, E)."""
        weight, bias = self.in_proj_weight, self.in_proj_bias
        if same and weight is not None:
            packed = linear(query, weight, bias).unflatten(-1, (3, self.num_heads, -1))
            q, k, v = packed.permute(2, 0, 3, 1, 4).unbind(0)
            return q, k, v
        weights = (
            weight.chunk(3)
            if weight is not None
            else (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        )
        biases = (None,) * 3 if bias is None else bias.chunk(3)
        made = (
            linear(x, w, b).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for x, w, b in zip((query, key, value), weights, biases, strict=True)
        )
        q, k, v = made
        return q, k, v

    def _looked(self, call: _Call) -> Tensor:
        extra = self._extra()
        if extra is None:
            return attention(
                *call[:4], q_tokens=call.q_tokens, k_tokens=call.k_tokens,
                dropout_p=self.dropout if self.training else 0.0,
            )  # fmt: skip
        return looked(
            self._exact(call), call.pattern, call[:3], extra,
            tokens=(call.q_tokens, call.k_tokens), score_mods=(),
        )  # fmt: skip

    def _weights(self, call: _Call) -> Tensor:
        """(N, H, L, S), and behind the keys those that add_bias_kv and add_zero_attn add."""
        exact, extra = self._exact(call), self._extra()
        tokens = {"q_tokens": call.q_tokens, "k_tokens": call.k_tokens}
        if extra is None:
            return exact.weights(call.query, call.key, **tokens)
        return all_weights(exact, call.query, call.key, extra[0], **tokens)

    def _exact(self, call: _Call) -> Exact:
        return Exact(call.pattern, dropout=self.dropout).train(self.training)

    def _extra(self) -> tuple[Tensor, Tensor] | None:
        """The keys and values (1, H, m, E) that everybody sees: add_bias_kv's, then zeros."""
        pairs = []
        if self.bias_k is not None and self.bias_v is not None:
            shape = (1, self.num_heads, 1, self.head_dim)
            pairs.append([self.bias_k.view(shape), self.bias_v.view(shape)])
        if self.add_zero_attn:
            zeros = self.out_proj.weight.new_zeros(1, self.num_heads, 1, self.head_dim)
            pairs.append([zeros, zeros])
        if not pairs:
            return None
        key, value = (torch.cat(list(same), 2) for same in zip(*pairs, strict=True))
        return key, value

    def extra_repr(self) -> str:
        sizes = f"embed_dim={self.embed_dim}, num_heads={self.num_heads}"
        return f"{self.pattern}, {sizes}, batch_first={self.batch_first}"


def _check_few(sizes: Sizes) -> None:
    if sizes.queries * sizes.keys > budgets.returned_weights:
        raise NotSupported(
            f"need_weights=True for {sizes.queries:,} queries and {sizes.keys:,} keys: weights are "
            f"returned for up to {budgets.returned_weights:,} pairs. Call with need_weights=False; "
            "sparse_attention_weights and column_sums in eyeline.exact.weights need no n²"
        )
