"""One call of nn.MultiheadAttention's kind: checked, and its masks joined with a pattern."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument, NotSupported
from eyeline.layers.conversion.masks import pattern_of_mask, tokens_of_padding
from eyeline.patterns import Causal, Full, Pattern
from eyeline.tokens import Tokens


class Sizes(NamedTuple):
    """Batch rows, query heads, queries and keys. alone: whether the inputs have no batch."""

    batch: int
    heads: int
    queries: int
    keys: int
    alone: bool


def check_inputs(
    tensors: tuple[Tensor, Tensor, Tensor], widths: tuple[int, int, int], *, batch_first: bool
) -> None:
    """Raise unless query, key and value have one rank, 2 or 3, and these widths."""
    rank = tensors[0].dim()
    for name, x, width in zip(("query", "key", "value"), tensors, widths, strict=True):
        if x.is_nested:
            raise NotSupported(f"{name} is a nested tensor: give a padded one and key_padding_mask")
        if rank not in (2, 3) or x.dim() != rank or x.shape[-1] != width:
            batched = f"(N, length, {width})" if batch_first else f"(length, N, {width})"
            raise InvalidArgument(
                f"{name} {tuple(x.shape)}: its shape is {batched}, or (length, {width}) without a "
                "batch, and all three have the same rank"
            )


def pattern_of_call(
    pattern: Pattern, attn_mask: Tensor | None, sizes: Sizes, *, is_causal: bool
) -> Pattern:
    """The module's pattern and what attn_mask and is_causal mean, joined."""
    queries, keys = sizes.queries, sizes.keys
    if attn_mask is not None and attn_mask.shape[-2:] != (queries, keys):
        raise InvalidArgument(
            f"attn_mask {tuple(attn_mask.shape)} for {queries} queries and {keys} keys"
        )
    if pattern.compares_positions and queries != keys:
        raise NotSupported(
            f"{queries} queries and {keys} keys under {pattern}, which compares positions: nobody "
            "said where the queries stand among the keys. For cross attention name the module: "
            "convert(model, {'its name': Full(), '*': pattern})"
        )
    if is_causal and queries == keys:
        pattern = _joined(pattern, Causal())
        if torch.compiler.is_compiling():
            return pattern  # the hint is believed there, so that no mask is kept
    if attn_mask is not None:
        found = pattern_of_mask(attn_mask, batch=sizes.batch, heads=sizes.heads)
        return _joined(pattern, found)
    if is_causal and queries != keys:
        raise InvalidArgument(
            f"is_causal=True for {queries} queries and {keys} keys: give attn_mask too, which says "
            "where the queries stand"
        )
    return pattern


def tokens_of_call(
    key_padding_mask: Tensor | None, sizes: Sizes
) -> tuple[Tokens | None, Tokens | None]:
    """The tokens of queries and keys, None where all are there."""
    if key_padding_mask is None:
        return None, None
    expected = (sizes.keys,) if sizes.alone else (sizes.batch, sizes.keys)
    if tuple(key_padding_mask.shape) != expected:
        raise InvalidArgument(
            f"key_padding_mask {tuple(key_padding_mask.shape)}: for these inputs its shape is "
            f"{expected}"
        )
    return tokens_of_padding(key_padding_mask, sizes.queries)


def _joined(pattern: Pattern, rule: Pattern) -> Pattern:
    if isinstance(rule, Full) or pattern == rule:
        return pattern
    return rule if isinstance(pattern, Full) else pattern & rule
