"""Redundancy: how alike are the columns of attention matrices?

What replaces many keys by few rests on it, as Linformer and compressed keys do: columns that
repeat one another need not be kept apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument
from eyeline.measuring.looking import Look, of_each_layer
from eyeline.models import LanguageModel


class Redundancy(NamedTuple):
    """For each layer and head, float64 (layers, heads).

    rank: the effective rank of the matrix of weights A (n, n), exp(-Σ p_i log p_i) with
    p_i = σ_i / Σ σ, from 1 to n (Roy and Vetterli 2007). repeated: the share of columns whose
    cosine with an earlier one exceeds a limit.
    """

    rank: Tensor
    repeated: Tensor


def redundancy(model: LanguageModel, ids: Sequence[int], *, cosine: float = 0.99) -> Redundancy:
    """Effective rank and near-duplicate columns of softmax(QKᵀ/√E) of each layer and head.

    For short texts: whole matrices are made, one layer at a time, so memory is H·n² and time
    H·n³. Under a causal pattern a column is 0 above its diagonal, so columns far apart cannot be
    alike; patterns that look both ways show the most. Columns of zeros are like no other.

    Raises InvalidArgument for no ids and unless -1 ≤ cosine ≤ 1, and NotSupported for mechanisms
    that are not exact attention.
    """
    number = isinstance(cosine, (int, float)) and not isinstance(cosine, bool)
    if not number or not -1.0 <= cosine <= 1.0:
        raise InvalidArgument(f"cosine={cosine!r}: a number from -1 to 1")
    return Redundancy(*of_each_layer(model, ids, partial(_of_heads, cosine=cosine)).unbind(1))


def _of_heads(look: Look, cosine: float) -> Tensor:
    """Rank and share of each query head, (2, H)."""
    weights = look.exact.weights(look.query, look.key)[0].double()
    return torch.stack([effective_rank(weights), repeated_columns(weights, cosine)]).cpu()


def effective_rank(matrices: Tensor) -> Tensor:
    """exp of the entropy of the singular values' shares: (…, m, n) to (…,), 0 for a zero matrix."""
    values = torch.linalg.svdvals(matrices)
    whole = values.sum(-1, keepdim=True)
    shares = values / whole.where(whole > 0.0, 1.0)
    entropy = torch.special.entr(shares).sum(-1)
    rank: Tensor = entropy.exp().where(whole[..., 0] > 0.0, 0.0)
    return rank


def repeated_columns(matrices: Tensor, cosine: float) -> Tensor:
    """The share of columns whose cosine with an earlier one exceeds a limit, (…, m, n) to (…,)."""
    length = matrices.norm(dim=-2, keepdim=True)
    columns = matrices / length.where(length > 0.0, 1.0)
    alike = columns.mT @ columns > cosine
    there = length[..., 0, :] > 0.0
    alike &= there.unsqueeze(-1) & there.unsqueeze(-2)
    share: Tensor = alike.tril(-1).any(-1).double().mean(-1)
    return share
