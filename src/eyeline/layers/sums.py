"""Learned sums of a layer's inputs, taken before they are projected: fewer rows to project."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from eyeline.layers.checks import check_tokens
from eyeline.mechanisms import Linformer
from eyeline.mechanisms.fewer.places import without_documents
from eyeline.tokens import Tokens


def sums_first(mechanism: Linformer, projections: tuple[nn.Linear, nn.Linear]) -> bool:
    """Whether it is cheaper to sum up first: S·k·d, against S·d·d′ + S·k·d′ after projecting.

    Heads must share the sums, which is when E (X W) = (E X) W.
    """
    if mechanism.sharing == "none" or not all(isinstance(x, nn.Linear) for x in projections):
        return False
    k, inward = mechanism.k, sum(x.in_features for x in projections)
    return k * inward < sum((x.in_features + k) * x.out_features for x in projections)


def summed(
    mechanism: Linformer,
    inputs: tuple[Tensor, Tensor],
    projections: tuple[nn.Linear, nn.Linear],
    tokens: Tokens | None,
) -> tuple[Tensor, Tensor]:
    """E (X W + 1 bᵀ) = (E X) W + (E 1) bᵀ of what keys and values are made of.

    inputs: (B, S, kdim) and (B, S, vdim). Returns (B, k, Hk·E) of keys and of values.
    """
    if tokens is not None:
        check_tokens("k_tokens", tokens, *inputs[0].shape[:2])
        without_documents("linformer", tokens)
    keys = mechanism.sums(inputs[0][:, None], tokens)
    same = inputs[1] is inputs[0] and mechanism.sharing == "key_value"
    values = keys if same else mechanism.sums(inputs[1][:, None], tokens, of_values=True)
    ones = torch.ones_like(inputs[0][:, None, :, :1])
    counts = [mechanism.sums(ones, tokens, of_values=x) for x in (False, True)]
    return (
        _projected(projections[0], keys[:, 0], counts[0][:, 0]),
        _projected(projections[1], values[:, 0], counts[1][:, 0]),
    )


def _projected(projection: nn.Linear, sums: Tensor, count: Tensor) -> Tensor:
    """The layer's own projection adds its bias once, and each sum needs it ``count`` times."""
    out: Tensor = projection(sums)
    return out if projection.bias is None else out + (count - 1) * projection.bias
