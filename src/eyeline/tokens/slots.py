"""Small operations on the tokens of slots. None of them changes the tokens it is given."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from eyeline.tokens.tokens import NOBODY, Tokens


def join(before: Tokens, after: Tokens) -> Tokens:
    """The slots of one, then those of the other; per row if either differs by row.

    Both name documents, segments and encoding positions, or neither does; the tokens of no slot
    at all name what the others name.
    """
    if not before.length or not after.length:
        return after if not before.length else before
    batch = before.batch if before.batch is not None else after.batch
    more = iter(column for column in after._columns if column is not None)
    return before.mapped(
        lambda column: torch.cat((_rows(column, batch), _rows(next(more), batch)), -1)
    )


def take(tokens: Tokens, slots: Tensor) -> Tokens:
    """The tokens in these slots, (m,) or (B, m)."""
    batch = slots.shape[0] if slots.dim() == 2 else None
    return tokens.mapped(lambda column: _rows(column, batch).gather(-1, slots))


def only(tokens: Tokens, real: Tensor) -> Tokens:
    """The same slots, with padding where ``real`` is False."""
    shape = torch.broadcast_shapes(real.shape, tokens.positions.shape)
    wide = tokens.mapped(lambda column: column.expand(shape))
    positions = torch.where(real, tokens.positions, NOBODY)
    return Tokens(positions, wide.documents, wide.segments, wide.encoding_positions)


def first(tokens: Tokens, count: int) -> Tokens:
    """The first ``count`` slots."""
    return tokens if count == tokens.length else tokens.mapped(lambda column: column[..., :count])


def exchanged(tokens: Tokens, index: Tensor) -> Tokens:
    """Row b is what row index[b] was; slots shared by all rows stay as they are."""
    if tokens.batch is None:
        return tokens
    index = index.to(tokens.positions.device)
    return tokens.mapped(lambda column: column[index])


def _rows(tensor: Tensor, batch: int | None) -> Tensor:
    return tensor if batch is None or tensor.dim() == 2 else tensor.expand(batch, -1)


# Steps: where a text that is read piece by piece goes on.

Position = int | Tensor
"""A position for all rows, or int64 (B, 1) when batch rows differ."""


class Reached(NamedTuple):
    """What a text has come to: its next position, and the document that it is in.

    document: int64 (1, 1) or (B, 1), -1 where nothing real was read; None if none are named.
    """

    position: Position = 0
    document: Tensor | None = None

    def after(self, tokens: Tokens) -> Reached:
        """What it has come to with more tokens."""
        if tokens.length == 0:
            return self
        if tokens.documents is None:
            return Reached(_after(self.position, tokens))
        there = torch.atleast_2d(tokens.positions) != NOBODY
        last = torch.where(there, torch.arange(tokens.length, device=there.device), NOBODY)
        last = last.amax(-1, keepdim=True)
        position, document = (
            torch.atleast_2d(column).gather(1, last.clamp(min=0))
            for column in (tokens.positions, tokens.documents)
        )
        before = torch.as_tensor(self.position, device=there.device)
        position = torch.where(last >= 0, position + 1, before)
        document = torch.where(last >= 0, document, self._named(document))
        shared = tokens.batch is None and isinstance(self.position, int) and len(position) == 1
        return Reached(int(position) if shared else position, document)

    def precedes(self, tokens: Tokens) -> bool:
        """Whether tokens may come next: positions go up in each document, as documents do.

        Padding is left out. A document that was left is not come back to.
        """
        if tokens.documents is None:
            return _goes_up(self.position, tokens.positions)
        columns = [torch.atleast_2d(x) for x in (tokens.positions, tokens.documents)]
        before = [
            torch.as_tensor(self.position, device=columns[0].device).reshape(-1, 1) - 1,
            self._named(columns[1][:, :1]),
        ]
        rows = max(len(x) for x in (*columns, *before))
        position, document = (
            torch.cat((start.expand(rows, 1), column.expand(rows, -1)), 1)
            for start, column in zip(before, columns, strict=True)
        )
        there = position[:, 1:] != NOBODY
        slots = torch.arange(position.shape[1], device=there.device)
        last = torch.where(torch.nn.functional.pad(there, (1, 0), value=True), slots, 0)
        last = last.cummax(1).values[:, :-1]
        left, new = document.gather(1, last), document[:, 1:]
        further = (new == left) & (position[:, 1:] > position.gather(1, last))
        return bool((~there | (new > left) | further).all())

    def goes_on(self, tokens: Tokens) -> Tensor | None:
        """bool (B or 1, 1): whether the first token is of the document before; None: no documents.

        True where the tokens are padding alone, and where nothing was read before.
        """
        if tokens.documents is None or not tokens.length:
            return None
        there = torch.atleast_2d(tokens.positions) != NOBODY
        opening = torch.atleast_2d(tokens.documents).gather(1, there.long().argmax(1, keepdim=True))
        before = self._named(opening)
        same: Tensor = (opening == before) | (before == NOBODY) | ~there.any(1, keepdim=True)
        return same

    def exchanged(self, index: Tensor) -> Reached:
        """Row b is what row index[b] was."""
        position, document = self
        if isinstance(position, Tensor):
            position = position[index.to(position.device)]
        if document is not None and len(document) > 1:
            document = document[index.to(document.device)]
        return Reached(position, document)

    def _named(self, like: Tensor) -> Tensor:
        return self.document if self.document is not None else torch.full_like(like, NOBODY)


def _after(position: Position, tokens: Tokens) -> Position:
    reached = tokens.positions.amax(-1, keepdim=True) + 1
    if tokens.batch is None and isinstance(position, int):
        return max(int(reached), position)
    return torch.maximum(reached, torch.as_tensor(position))


def _goes_up(position: Position, positions: Tensor) -> bool:
    below = torch.as_tensor(position).expand(*positions.shape[:-1], 1) - 1
    if positions.shape[-1] == 1:
        return bool(((positions > below) | (positions == NOBODY)).all())
    reached = torch.cat((below, positions), -1).cummax(-1).values[..., :-1]
    return bool(((positions > reached) | (positions == NOBODY)).all())
