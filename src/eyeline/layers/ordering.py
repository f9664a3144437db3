"""Sequences put in the order of their positions, pads last, and back: for layers that run along."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from eyeline.errors import NotSupported
from eyeline.layers.checks import check_tokens
from eyeline.tokens import LARGEST, NOBODY, Tokens


def nobody(tokens: Tokens, device: torch.device) -> Tensor:
    """bool (L,) or (B, L) as (1, L) or (B, L): in which slots nobody is."""
    missing = (tokens.positions == NOBODY).to(device)
    return missing if missing.dim() == 2 else missing[None]


class Order(NamedTuple):
    """order[r, p]: which slot comes p-th in row r; rank: its inverse; real: who is there, by slot.

    All (R, L), R = 1 for all batch rows or one each; None where slots stand in order, without pads.
    """

    order: Tensor | None = None
    rank: Tensor | None = None
    real: Tensor | None = None

    def there(self, x: Tensor) -> Tensor | None:
        """bool (B, L), by place: who is there; None where everybody is."""
        if self.real is None or self.order is None:
            return None
        return self.real.gather(1, self.order).expand(len(x), -1)

    def take(self, x: Tensor) -> Tensor:
        """(B, L, width) in order, with true zeros in place of nobody."""
        return x if self.order is None else _picked(self._masked(x), self.order)

    def back(self, y: Tensor) -> Tensor:
        """(B, L, width) from the order to the slots; nobody gets 0."""
        return y if self.rank is None else self._masked(_picked(y, self.rank))

    def _masked(self, x: Tensor) -> Tensor:
        return x if self.real is None else x.masked_fill(~self.real[..., None], 0.0)


def order_of(name: str, x: Tensor, tokens: Tokens | None) -> Order:
    """The order of the tokens of x (B, L, …); the slots' own if there are none.

    Raises InvalidArgument for tokens that are not those of x, NotSupported for documents.
    """
    if tokens is None:
        return Order()
    check_tokens("q_tokens", tokens, *x.shape[:2])
    if tokens.documents is not None:
        raise NotSupported(f"{name} would carry one document to the next: give each a row")
    if torch.compiler.is_compiling():
        raise NotSupported(f"{name} looks up where tokens stand, which a graph does not know")
    return _order(tokens, x.device)


@lru_cache(maxsize=16)
def _order(tokens: Tokens, device: torch.device) -> Order:
    with torch.inference_mode(False):
        positions = torch.atleast_2d(tokens.host.positions)
        real = positions != NOBODY
        order = positions.masked_fill(~real, LARGEST).argsort(stable=True, dim=1)
        return Order(*(x.to(device) for x in (order, order.argsort(1), real)))


def _picked(x: Tensor, index: Tensor) -> Tensor:
    if len(index) == 1:
        return x.index_select(1, index[0])
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[2]))
