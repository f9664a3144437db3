"""The oracle: the whole matrix, readable from top to bottom. Every kernel is compared with it.

    score[i, j] = scale · query[i] · key[j], changed by the score steps;  -inf where i may not look
    lse[i]      = log Σ_j exp(score[i, j])
    weight      = exp(score - lse), changed by the weight steps
    output[i]   = Σ_j weight[i, j] · value[j], and what the output steps add

A query that may look at nobody gets output 0 and lse -inf. Time and memory are L·S. All
derivatives exist: second ones, forward mode, vmap.
"""

from __future__ import annotations

import torch
from torch import Tensor

from eyeline.checks import wide_dtype
from eyeline.kernels.request import Request, mask_of, pairs_of

NAME = "reference"


def refusal(request: Request) -> str | None:
    """The reference serves every request."""
    return None


def run(request: Request) -> tuple[Tensor, Tensor]:
    """output (B, H, L, Ev) and lse (B, H, L); lse is float32 or float64."""
    weight, lse = weights(request)
    out = weight @ _per_query_head(request.value.to(weight.dtype), request)
    for step in request.output_steps:
        out = out + step.define(weight, pairs_of(request))
    return out.to(request.value.dtype), lse


def weights(request: Request, times: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The weight of each pair, (B, H, L, S), and the log-sum-exp of each row, (B, H, L).

    times: how often each pair counts, of the same shape, as if its score were log times higher.
    """
    wide = wide_dtype(request.query)
    key = _per_query_head(request.key.to(wide), request)
    score = request.scale * (request.query.to(wide) @ key.transpose(-2, -1))
    pairs = pairs_of(request)
    for step in request.score_steps:
        score = step.define(score, pairs)
    # A step may forbid a pair too: -inf stays -inf.
    seen = mask_of(request) & (score != -torch.inf)
    if times is not None:
        seen = seen & (times > 0)
        score = score + times.clamp(min=1).to(wide).log()
    some = seen.any(-1)
    # An empty row is given numbers first and taken out afterwards, so that no derivative meets
    # inf - inf.
    score = score.masked_fill(~seen, -torch.inf).masked_fill(~some.unsqueeze(-1), 0.0)
    lse = score.logsumexp(-1)
    weight = (score - lse.unsqueeze(-1)).exp().masked_fill(~seen, 0.0)
    for change in request.weight_steps:
        weight = change.define(weight, pairs)
    return weight, lse.masked_fill(~some, -torch.inf)


def _per_query_head(x: Tensor, request: Request) -> Tensor:
    return x.repeat_interleave(request.groups, dim=1) if request.groups > 1 else x
