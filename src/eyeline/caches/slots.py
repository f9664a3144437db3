"""Small operations on the tokens of slots. None of them changes the tokens it is given."""

from __future__ import annotations

import torch
from torch import Tensor

from eyeline.tokens import NOBODY, Tokens


def join(first: Tokens, second: Tokens) -> Tokens:
    """The slots of the first, then those of the second; per row if either differs by row."""
    batch = first.batch if first.batch is not None else second.batch
    positions = torch.cat((_rows(first.positions, batch), _rows(second.positions, batch)), -1)
    if first.documents is None and second.documents is None:
        return Tokens(positions)
    documents = [_rows(_documents(tokens), batch) for tokens in (first, second)]
    return Tokens(positions, torch.cat(documents, -1))


def take(tokens: Tokens, slots: Tensor) -> Tokens:
    """The tokens in these slots, (m,) or (B, m)."""
    batch = slots.shape[0] if slots.dim() == 2 else None
    positions = _rows(tokens.positions, batch).gather(-1, slots)
    documents = tokens.documents
    if documents is not None:
        documents = _rows(documents, batch).gather(-1, slots)
    return Tokens(positions, documents)


def only(tokens: Tokens, somebody: Tensor) -> Tokens:
    """The same slots, with nobody where ``somebody`` is False."""
    positions = torch.where(somebody, tokens.positions, NOBODY)
    documents = tokens.documents
    return Tokens(positions, None if documents is None else documents.expand(positions.shape))


def first(tokens: Tokens, count: int) -> Tokens:
    """The first ``count`` slots."""
    if count == tokens.length:
        return tokens
    documents = None if tokens.documents is None else tokens.documents[..., :count]
    return Tokens(tokens.positions[..., :count], documents)


def exchanged(tokens: Tokens, index: Tensor) -> Tokens:
    """Row b is what row index[b] was; slots shared by all rows stay as they are."""
    if tokens.batch is None:
        return tokens
    index = index.to(tokens.positions.device)
    documents = None if tokens.documents is None else tokens.documents[index]
    return Tokens(tokens.positions[index], documents)


def followed_by(position: int | Tensor, positions: Tensor) -> bool:
    """Whether the positions, nobody left out, go up from ``position`` on in each row."""
    below = torch.as_tensor(position).expand(*positions.shape[:-1], 1) - 1
    if positions.shape[-1] == 1:
        return bool(((positions > below) | (positions == NOBODY)).all())
    reached = torch.cat((below, positions), -1).cummax(-1).values[..., :-1]
    return bool(((positions > reached) | (positions == NOBODY)).all())


def _documents(tokens: Tokens) -> Tensor:
    return tokens.documents if tokens.documents is not None else torch.zeros_like(tokens.positions)


def _rows(tensor: Tensor, batch: int | None) -> Tensor:
    return tensor if batch is None or tensor.dim() == 2 else tensor.expand(batch, -1)
