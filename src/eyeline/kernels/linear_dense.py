"""Linear attention with all its weights: the oracle, for short inputs and second derivatives."""

from __future__ import annotations

import torch
from torch import Tensor

from eyeline.kernels.chunks import Marks
from eyeline.kernels.features import FeatureMap


def dense_weights(query: Tensor, key: Tensor, feature_map: FeatureMap, mask: Tensor) -> Tensor:
    """weight[i, j] = φ(q_i)ᵀφ(k_j) / Σ_j φ(q_i)ᵀφ(k_j) over the j that i may look at.

    query (B, H, L, E), key (B, Hk, S, E), mask bool, broadcasting with (B, H, L, S). A row sums to
    1, or to 0 if there is nothing in it. Memory is L·S, times F for maps that give log φ.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    fq = feature_map(query.to(wide))
    fk = feature_map(key.to(wide)).repeat_interleave(query.shape[1] // key.shape[1], 1)
    if feature_map.logarithmic:
        pair = (fq.unsqueeze(3) + fk.unsqueeze(2)).logsumexp(-1)
        # A row without keys is given real exponents first, so that no derivative meets inf - inf.
        blocked = ~(mask | ~mask.any(-1, keepdim=True))
        return pair.masked_fill(blocked, -torch.inf).softmax(-1).masked_fill(~mask, 0.0)
    product = (fq @ fk.transpose(-2, -1)).masked_fill(~mask, 0.0)
    total = product.sum(-1, keepdim=True)
    return (product / total.masked_fill(total == 0, 1.0)).masked_fill(total == 0, 0.0)


def dense_linear(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    feature_map: FeatureMap,
    marks: Marks,
    *,
    causal: bool,
) -> Tensor:
    """The whole of linear attention by its weights; causal, and documents apart, by slot."""
    mask = torch.ones(1, 1, query.shape[2], key.shape[2], dtype=torch.bool, device=query.device)
    mask = mask.tril() if causal else mask
    if marks.somebody is not None:
        mask = mask & marks.somebody[:, None, None, :]
    if marks.segments is not None:
        mask = mask & (marks.segments[:, None, :, None] == marks.segments[:, None, None, :])
    weight = dense_weights(query, key, feature_map, mask)
    value = value.repeat_interleave(query.shape[1] // key.shape[1], 1)
    return (weight @ value.to(weight.dtype)).to(query.dtype)
