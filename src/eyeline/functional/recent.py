"""Tokens that were seen before, found again by what they hold.

A graph of torch.compile hands an operator positions, not the object that stands for them; plans
are remembered by the object. So the last few are kept, and equal positions get the same one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from eyeline.tokens import Tokens

# Queries and keys of a few layers that look at different sequences.
_MOST = 16
_known: tuple[Tokens, ...] = ()


def recent_tokens(positions: Tensor, documents: Tensor | None) -> Tokens:
    """Tokens that hold equal numbers: the same object for the same numbers, if asked soon again.

    They hold copies on the CPU: a compiled graph writes over what it has handed out.
    Raises InvalidArgument for numbers that cannot be positions or documents.
    """
    global _known
    positions, documents = positions.cpu(), None if documents is None else documents.cpu()
    known = _known
    for index, tokens in enumerate(known):
        if _equal(tokens.positions, positions) and _equal(tokens.documents, documents):
            if index:
                _known = (tokens, *known[:index], *known[index + 1 :])
            return tokens
    with torch.inference_mode(False):
        made = Tokens(positions.clone(), None if documents is None else documents.clone())
    _known = (made, *known[: _MOST - 1])
    return made


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and torch.equal(a, b)
