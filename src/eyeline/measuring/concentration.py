"""Concentration: on how few of the keys that a query may look at does its weight lie?

Top-k attention rests on it: if 2 % of the pairs hold 95 % of the weight, the others need not be
looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument
from eyeline.measuring.looking import Look, of_each_layer
from eyeline.models import LanguageModel
from eyeline.routing.scored import sheets


def concentration(model: LanguageModel, ids: Sequence[int], *, share: float = 0.95) -> Tensor:
    """Mean over queries of (fewest keys whose weights sum to ``share``) / (keys allowed).

    For each layer and head, float64 (layers, heads), while the model reads ids under its own
    patterns. From 1/n, where each query looks at one key, to ``share``, where all weights are
    equal. The first queries of a causal text have few keys and so a large part of them. Queries
    that may look at nobody do not count; NaN where all are such. Weights are made for some
    queries at a time and never kept.

    Raises InvalidArgument for no ids and unless 0 < share ≤ 1, and NotSupported for mechanisms
    that are not exact attention.
    """
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0.0 < share <= 1.0:
        raise InvalidArgument(f"share={share!r}: a part of the weight, above 0 and up to 1")
    return of_each_layer(model, ids, partial(_of_heads, share=float(share)))


def _of_heads(look: Look, share: float) -> Tensor:
    """Of each query head, (H,)."""
    scored = look.scored
    total, count = (torch.zeros(scored.shape[:2], dtype=torch.float64) for _ in range(2))
    for sheet in sheets(scored):
        part, some = _parts(sheet.scores, share)
        total[sheet.at[:2]] += part.sum(-1).cpu()
        count[sheet.at[:2]] += some.sum(-1).cpu()
    return (total / count).flatten()


def _parts(scores: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """What part of its allowed keys holds ``share`` of each row (…, C), and whether it has any.

    A few rounding errors of the whole are forgiven, so that share=1 does not hang on the last of
    the weights that add up to it.
    """
    weight = scores.double().softmax(-1).nan_to_num_(0.0)
    held = weight.sort(-1, descending=True).values.cumsum(-1)
    allowed = (scores > -torch.inf).sum(-1)
    short = held < share * (1.0 - 1e-12)
    fewest = short.sum(-1) + 1
    some = allowed > 0
    part = fewest.minimum(allowed).double() / allowed.clamp(min=1)
    return part, some
