"""Where the tokens of a layer stand: what is added, what is turned, and what changes the scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from eyeline.encodings import Added, Rotary, Sinusoidal
from eyeline.encodings.rotary import Tables
from eyeline.errors import InvalidArgument
from eyeline.memory import remembered, traced
from eyeline.scores import ScoreMod
from eyeline.tokens import Tokens, default_tokens

Position = Rotary | Added | ScoreMod | Callable[..., Any]
"""Rotary turns queries and keys; Added is added to what they are made of; a ScoreMod, or a
FlexAttention callable, changes the scores."""


class Positions(NamedTuple):
    """What a layer was given, by what is done with it. The order of score_mods is kept."""

    added: Added | None = None
    rotary: Rotary | None = None
    score_mods: tuple[ScoreMod | Callable[..., Any], ...] = ()


def sorted_positions(position: Position | Sequence[Position] | None) -> Positions:
    """Raises InvalidArgument for a second Added or Rotary, and for what is no position."""
    found = Positions()
    each = position if isinstance(position, (list, tuple)) else (position,)
    for one in each:
        if one is None:
            continue
        if isinstance(one, type):
            raise InvalidArgument(f"position is the class {one.__name__}: make one of it")
        if isinstance(one, ScoreMod):
            found = found._replace(score_mods=(*found.score_mods, one))
        elif isinstance(one, Rotary):
            _first("Rotary", found.rotary, one)
            found = found._replace(rotary=one)
        elif isinstance(one, Added):
            _first("added encoding", found.added, one)
            found = found._replace(added=one)
        elif callable(one) and not isinstance(one, torch.nn.Module):
            found = found._replace(score_mods=(*found.score_mods, one))
        else:
            raise InvalidArgument(
                f"position is a {type(one).__name__}: a layer takes a Rotary, an encoding that is "
                "added (Sinusoidal, Learned), a ScoreMod (ALiBi, T5Bias, …), or several of them"
            )
    return found


def check_fit(positions: Positions, head_dim: int, *, query: int, key: int) -> None:
    """Raise InvalidArgument unless the widths are those of heads, queries and keys."""
    rotary, added = positions.rotary, positions.added
    if rotary is not None and rotary.head_dim != head_dim:
        raise InvalidArgument(f"{rotary} turns heads of {rotary.head_dim}, these are {head_dim}")
    for name, width in (("queries", query), ("keys", key)):
        if added is not None and added.width != width:
            raise InvalidArgument(f"{added} of width {added.width} for {name} of width {width}")


def _first(kind: str, before: object, one: object) -> None:
    if before is not None:
        raise InvalidArgument(f"position holds {before} and {one}: one {kind} a layer")


def added_at(encoding: Added | None, x: Tensor, tokens: Tokens | None) -> Tensor:
    """x (B, L, width) with what the encoding adds where the tokens stand; 0 … L-1 if omitted."""
    if encoding is None:
        return x
    tokens = tokens if tokens is not None else default_tokens(x.shape[1], x.shape[1])[0]
    if isinstance(encoding, Sinusoidal) and not traced():
        return x + _sinusoidal(encoding, tokens, x.dtype, x.device)
    return x + encoding.table(tokens.encoded.to(x.device), dtype=x.dtype)


@remembered(8)
def _sinusoidal(
    encoding: Sinusoidal, tokens: Tokens, dtype: torch.dtype, device: torch.device
) -> Tensor:
    with torch.inference_mode(False):
        return encoding.table(tokens.encoded.to(device), dtype=dtype)


def rotary_tables(rotary: Rotary, tokens: Tokens, like: Tensor) -> Tables:
    """The tables that turn x where the tokens stand, in its dtype and on its device.

    They are remembered by the tokens themselves, so that layers which share them share the tables.
    """
    if traced():
        return rotary.tables(tokens.encoded.to(like.device), dtype=like.dtype)
    return _tables(rotary, tokens, like.dtype, like.device)


@remembered(8)
def _tables(rotary: Rotary, tokens: Tokens, dtype: torch.dtype, device: torch.device) -> Tables:
    with torch.inference_mode(False), torch.no_grad():
        return rotary.tables(tokens.encoded.to(device), dtype=dtype)
