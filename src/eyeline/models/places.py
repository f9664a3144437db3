"""Where tokens stand for an encoding that is learned: packed documents each begin at 0."""

from __future__ import annotations

import torch
from torch import Tensor

from eyeline.tokens import LARGEST, NOBODY, Tokens


def places(tokens: Tokens) -> Tensor:
    """The position of each token in its own document, from the document's first: (L,) or (B, L).

    Where there are no documents it is the position itself. Nobody stays at -1.
    """
    positions, documents = tokens.positions, tokens.documents
    if documents is None:
        return positions
    rows = torch.arange(positions.numel() // max(tokens.length, 1), device=positions.device)
    pairs = torch.stack((rows.repeat_interleave(tokens.length), documents.flatten()))
    distinct, which = pairs.unique(dim=1, return_inverse=True)
    flat = positions.flatten()
    somebody = flat != NOBODY
    first = torch.full((distinct.shape[1],), LARGEST, device=flat.device)
    first.scatter_reduce_(0, which, flat.masked_fill(~somebody, LARGEST), "amin")
    return torch.where(somebody, flat - first[which], NOBODY).view(positions.shape)
