"""Positions counted anew among the tokens that a cache has kept."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from eyeline.tokens import NOBODY, Tokens


class Ranks(NamedTuple):
    """Positions for an encoding: int64, of the shapes of the tokens' positions."""

    query: Tensor
    key: Tensor


def recount(q_tokens: Tokens, k_tokens: Tokens) -> Ranks:
    """Token at position p gets the number of kept keys before p; nobody stays nobody.

    A query stands among the keys of its own step, so one attention call with these positions
    equals attention over the kept tokens at positions 0 … m - 1. Deeper layers still differ from
    such a run, since what they kept has seen tokens that are gone. Xiao et al. 2023.
    """
    present = k_tokens.positions != NOBODY
    ordered = torch.where(present, k_tokens.positions, torch.iinfo(torch.int64).max).sort(-1).values
    return Ranks(_rank(q_tokens.positions, ordered), _rank(k_tokens.positions, ordered))


def _rank(positions: Tensor, ordered: Tensor) -> Tensor:
    if ordered.dim() == 2:
        positions = positions.expand(ordered.shape[0], -1)
    elif positions.dim() == 2:
        ordered = ordered.expand(positions.shape[0], -1)
    rank = torch.searchsorted(ordered.contiguous(), positions.contiguous())
    return torch.where(positions == NOBODY, NOBODY, rank)
