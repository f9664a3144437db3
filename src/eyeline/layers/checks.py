"""What does not fit together is refused, in words, when a layer is made or called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from eyeline.caches import Cache
from eyeline.checks import check_sizes, equal
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.mechanisms import Mechanism
from eyeline.memory import traced
from eyeline.patterns import Pattern
from eyeline.tokens import NOBODY, Tokens
from eyeline.tokens.ordering import Ordering, sorted_by


def head_width(embed_dim: int, num_heads: int, num_kv_heads: int, head_dim: int | None) -> int:
    """The width of a head. Raises InvalidArgument where heads do not divide evenly."""
    check_sizes(embed_dim=embed_dim, num_heads=num_heads, num_kv_heads=num_kv_heads)
    if num_heads % num_kv_heads:
        raise InvalidArgument(
            f"num_heads={num_heads} cannot share num_kv_heads={num_kv_heads} evenly: the first "
            "must be a multiple of the second"
        )
    if head_dim is not None:
        check_sizes(head_dim=head_dim)
        return head_dim
    if embed_dim % num_heads:
        raise InvalidArgument(
            f"embed_dim={embed_dim} is no multiple of num_heads={num_heads}: say how wide a head "
            f"is with head_dim, for example head_dim={max(embed_dim // num_heads, 1)}"
        )
    return embed_dim // num_heads


def check_width(name: str, x: Tensor, width: int) -> None:
    """Raise InvalidArgument unless x is (B, L, width)."""
    if x.dim() != 3 or x.size(2) != width:
        raise InvalidArgument(
            f"{name} {tuple(x.shape)} must be (batch, length, {width}): batch first, always"
        )


def check_shared(name: str, embed_dim: int, kdim: int) -> None:
    """Raise InvalidArgument where a query's own projection cannot make the keys."""
    if kdim != embed_dim:
        raise InvalidArgument(
            f"mechanism={name}(…) has shared queries and keys, of one projection: kdim={kdim} is "
            f"not embed_dim={embed_dim}"
        )


def refuse_apart(
    layer: nn.Module,
    weights: Mapping[str, Tensor],
    prefix: str,
    local_metadata: Any,
    strict: bool,
    missing: list[str],
    unexpected: list[str],
    errors: list[str],
) -> None:
    """A hook of load_state_dict: of two projections the last would be taken without a word."""
    for name in ("weight", "bias"):
        sides = [weights.get(f"{prefix}{side}_proj.{name}") for side in "qk"]
        q, k = (x if type(x) in (Tensor, nn.Parameter) else None for x in sides)
        if q is None or k is None or q.is_meta or k.is_meta:
            continue
        rough = min(q.dtype, k.dtype, key=lambda dtype: dtype.itemsize)
        if not equal(q.to(rough), k.to(rough)):
            errors.append(
                f"{prefix}q_proj.{name} and {prefix}k_proj.{name} differ, and this layer has one "
                "projection for queries and keys, which are the same"
            )


def check_input(name: str, x: Tensor, width: int, weight: Tensor) -> None:
    """Raise InvalidArgument unless x is (B, L, width) with the weight's dtype."""
    if x.dtype == weight.dtype and x.dim() == 3 and x.size(2) == width:
        return  # said at once: decoding comes by often
    check_width(name, x, width)
    if not torch.is_autocast_enabled(x.device.type):
        raise InvalidArgument(
            f"{name} is {x.dtype} and the layer's weights are {weight.dtype}: convert one of them, "
            "or use torch.autocast"
        )


def check_tokens(name: str, tokens: Tokens, batch: int, length: int) -> None:
    """Raise InvalidArgument unless the tokens are those of an input (batch, length, …)."""
    if tokens.length != length or tokens.batch not in (None, batch):
        raise InvalidArgument(
            f"{name} has shape {tuple(tokens.positions.shape)}; the input needs ({length},) or "
            f"({batch}, {length})"
        )


def check_last(queries: int, keys: int) -> None:
    """Raise InvalidArgument where queries that nobody placed are more than the keys."""
    if queries > keys:
        raise InvalidArgument(
            f"{queries} queries cannot be the last of {keys} keys: say where they stand with "
            "q_tokens and k_tokens"
        )


def check_same(name: str, given: Tokens, made: Tokens, words: str) -> None:
    """Raise InvalidArgument unless the given tokens are those of something that was made before.

    The same object is taken at once; others are compared, so not inside a whole graph.
    """
    if given is made or _equal(given.host, made.host):
        return
    raise InvalidArgument(
        f"{name} are {_brief(given)}: {words}, {_brief(made)}; give that very object to each call"
    )


def _equal(one: Tokens, other: Tokens) -> bool:
    if traced():  # a graph has no numbers before it runs
        return False
    return one.equals(other)


def _brief(tokens: Tokens) -> str:
    if traced():
        return str(tuple(tokens.positions.shape))
    documents = "" if tokens.documents is None else ", with documents"
    return f"{tuple(tokens.positions.shape)} from {tokens.positions[..., :1].tolist()}{documents}"


def check_cached(
    cache: Cache, key: object, q_tokens: Tokens | None, k_tokens: Tokens | None
) -> None:
    """Raise InvalidArgument unless a call with a cache is self attention of the step's tokens."""
    if key is not None:
        raise InvalidArgument("a cache is for self attention: keep cross keys with project()")
    if q_tokens is None or k_tokens not in (None, q_tokens):
        raise InvalidArgument(
            "with a cache, q_tokens is what cache.advance was given, and the cache knows k_tokens"
        )
    if cache.latest is None:
        raise InvalidArgument("the cache has no tokens yet: cache.advance(tokens) comes first")
    if q_tokens is not cache.latest:
        check_same("q_tokens", q_tokens, cache.latest, "it is what cache.advance was given")


def check_mechanism(
    mechanism: object, pattern: object, score_mods: tuple[object, ...], dropout: float
) -> None:
    """Raise InvalidArgument for what is no mechanism, and for what it would not be told of."""
    if isinstance(mechanism, Pattern):
        raise InvalidArgument(f"mechanism={mechanism} is a pattern: give it as pattern=")
    if not isinstance(mechanism, Mechanism):
        kind = type(mechanism).__name__
        wrong = "class" if isinstance(mechanism, type) else kind
        hint = "; by its word recipe(…).make(pattern, heads)" if isinstance(mechanism, str) else ""
        raise InvalidArgument(
            f"mechanism is a {wrong}: an instance of a class derived from Mechanism is due{hint}"
        )
    name = type(mechanism).__name__
    if pattern is not None:
        raise InvalidArgument(
            f"pattern={pattern} and mechanism={name}(…): a layer looks in one way; "
            "give the pattern to the mechanism"
        )
    if score_mods or dropout:
        what = "dropout" if dropout else "score modifiers"
        raise InvalidArgument(
            f"{what} beside mechanism={name}(…), which would not see it: give it to the mechanism, "
            "for example Exact(pattern, score_mod=…, dropout=…)"
        )


def order_of(name: str, x: Tensor, tokens: Tokens | None) -> Ordering:
    """The order of positions of the tokens of x (B, L, …); the slots' own if there are none.

    Raises InvalidArgument for tokens that are not those of x, NotSupported for documents.
    """
    if tokens is None:
        return Ordering.as_it_is(x.shape[1], x.device)
    check_tokens("q_tokens", tokens, *x.shape[:2])
    if tokens.documents is not None:
        raise NotSupported(f"{name} would carry one document to the next: give each a row")
    if traced():
        raise NotSupported(f"{name} looks up where tokens stand, which a graph does not know")
    return sorted_by(tokens, "positions", device=x.device)


def padding(tokens: Tokens, device: torch.device) -> Tensor:
    """bool (L,) or (B, L) as (1, L) or (B, L): which slots are padding. A graph knows it too."""
    missing: Tensor = torch.atleast_2d(tokens.positions == NOBODY)
    return missing.to(device)
