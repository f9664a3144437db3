"""torch's masks read as what they mean: who may look (a pattern), and who is there (tokens).

In ``nn.MultiheadAttention`` True means "ignore" and a float mask is added to the scores. Both are
turned round here, and nowhere else.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument, NotSupported
from eyeline.exact.operator import recent_tokens
from eyeline.memory import remembered, traced
from eyeline.patterns import Causal, Explicit, Full, Pattern
from eyeline.tokens import NOBODY, Tokens, default_tokens

# One call of nn.MultiheadAttention's kind: checked, and its masks joined with a pattern.


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
        if traced():
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


def pattern_of_mask(attn_mask: Tensor, *, batch: int = 1, heads: int = 1) -> Pattern:
    """The pattern that allows what torch's attn_mask does not forbid.

    attn_mask: (L, S), or (batch · heads, L, S); bool, True = may not look, or floating, 0 = may
    look and -inf = may not. A mask that forbids exactly the future gives ``Causal()``, one that
    forbids nothing ``Full()``; only others become ``Explicit``, which keeps L·S bools.

    What was found for a mask is remembered as long as the tensor lives unchanged. torch counts
    changes, but not those made through ``mask.numpy()`` or ``mask.data``: after one of these the
    mask would still mean what it did, so give a new tensor. Inside torch.compile nothing is read
    from a mask, so every one is Explicit; ``is_causal`` is not.

    Raises InvalidArgument for other shapes, NotSupported for numbers other than 0 and -inf and for
    a mask that is trained.
    """
    _check_tensor("attn_mask", attn_mask)
    if attn_mask.dim() == 3:
        _check_rank_3(attn_mask, batch, heads)
    elif attn_mask.dim() != 2:
        raise InvalidArgument(
            f"attn_mask {tuple(attn_mask.shape)}: its shape is (L, S) or (N·num_heads, L, S)"
        )

    _check_fixed("attn_mask", attn_mask)

    return _pattern_of(attn_mask, heads)


def tokens_of_padding(
    key_padding_mask: Tensor, queries: int | None = None
) -> tuple[Tokens | None, Tokens | None]:
    """The tokens (queries, keys) that torch's key_padding_mask means; None, None if all are real.

    key_padding_mask: (N, S) or (S,), bool, True = nobody is there, or floating, 0 and -inf.
    queries: their number, S if not given. A key that is ignored is nobody, and the others keep the
    number of their slot as their position. Queries are not masked, as in torch: a pad that asks
    gets an answer, which nobody sees. Remembered as ``pattern_of_mask`` does.

    Raises InvalidArgument for other shapes, NotSupported for numbers other than 0 and -inf.
    """
    _check_tensor("key_padding_mask", key_padding_mask)
    if key_padding_mask.dim() not in (1, 2):
        raise InvalidArgument(
            f"key_padding_mask {tuple(key_padding_mask.shape)}: its shape is (N, S) or (S,)"
        )
    _check_fixed("key_padding_mask", key_padding_mask)
    keys = _keys(key_padding_mask)
    if keys is None:
        return None, None
    asked = queries if queries is not None else keys.length
    if traced():  # nothing is remembered there
        start = keys.length - asked if keys.length > asked else 0
        return Tokens.arange(start, start + asked), keys
    return default_tokens(asked, keys.length)[0], keys


@remembered(64, weak=True)
def _pattern_of(attn_mask: Tensor, heads: int) -> Pattern:
    """All layers are given the same mask."""
    return _pattern(_allowed("attn_mask", attn_mask), heads)


@remembered(64, weak=True)
def _keys(key_padding_mask: Tensor) -> Tokens | None:
    real = _allowed("key_padding_mask", key_padding_mask)
    if traced():
        slots = torch.arange(real.shape[-1], device=real.device)
        return Tokens(torch.where(real, slots, NOBODY))
    if bool(real.all()):
        return None
    slots = torch.arange(real.shape[-1], device=real.device)
    # Batches that are padded alike share their plans.
    return recent_tokens(torch.where(real, slots, NOBODY), None)


def _pattern(allowed: Tensor, heads: int) -> Pattern:
    if allowed.dim() == 3:
        allowed = allowed.unflatten(0, (-1, heads))
    if traced():
        return Explicit(allowed)
    if allowed.dim() == 4:
        allowed = _fewest(allowed)
    if bool(allowed.all()):
        return Full()
    if allowed.shape[-1] == allowed.shape[-2] and allowed.dim() == 2 and _is_causal(allowed):
        return Causal()
    return Explicit(allowed)


def _fewest(allowed: Tensor) -> Tensor:
    """(N, H, L, S) without the dimensions along which it repeats itself."""
    for axis in (1, 0):
        first = allowed.narrow(axis, 0, 1)
        if torch.equal(first.expand_as(allowed), allowed):
            allowed = first
    return allowed[0, 0] if allowed.shape[:2] == (1, 1) else allowed


def _is_causal(allowed: Tensor) -> bool:
    return torch.equal(allowed, torch.ones_like(allowed).tril())


def _allowed(name: str, mask: Tensor) -> Tensor:
    """True where torch's mask forbids nothing."""
    if mask.dtype == torch.bool:
        return ~mask
    if not mask.is_floating_point():
        raise InvalidArgument(f"{name} is {mask.dtype}: torch's masks are bool or floating")
    allowed = mask == 0
    known = (allowed | (mask == -torch.inf)).all()
    if traced():  # a graph has no numbers before it runs
        torch._assert_async(known, f"{name} holds numbers other than 0 and -inf")
    elif not bool(known):
        raise NotSupported(
            f"{name} {tuple(mask.shape)} holds numbers other than 0 and -inf. If large negative "
            f"ones mean 'may not look', give {name} < -1e4, a bool mask; a bias belongs in "
            "score_mod (ALiBi, T5Bias, …), or leave the module as it is: "
            "convert(model, {'its name': None, '*': pattern})"
        )
    return allowed


def _check_tensor(name: str, mask: object) -> None:
    if not isinstance(mask, Tensor):
        raise InvalidArgument(f"{name} is a {type(mask).__name__}, not a tensor")


def _check_fixed(name: str, mask: Tensor) -> None:
    if mask.requires_grad:
        raise NotSupported(
            f"{name} {tuple(mask.shape)} is trained: a bias belongs in score_mod (T5Bias, "
            "OffsetBias, …), or leave the module as it is: "
            "convert(model, {'its name': None, '*': pattern})"
        )


def _check_rank_3(mask: Tensor, batch: int, heads: int) -> None:
    if mask.shape[0] == batch * heads:
        return
    raise InvalidArgument(
        f"attn_mask {tuple(mask.shape)} could be read as (batch, L, S) or as (heads, L, S); "
        f"torch means (N·num_heads, L, S), here {batch} · {heads} = {batch * heads} rows. Write "
        "mask.repeat_interleave(num_heads, 0) for a mask for each batch row, "
        "mask.repeat(N, 1, 1) for one for each head"
    )
