"""The gradients of some chunks, written out, for maps that give φ and one document.

torch could differentiate ``run_chunks`` itself, as it does for the others. By hand the output need
not be computed again, and sums are added to in place.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from eyeline.kernels.chunks import grouped, ungrouped
from eyeline.kernels.features import FeatureMap
from eyeline.kernels.sums import total_slope, with_ones


def chunk_slopes(
    heads: tuple[Tensor, Tensor, Tensor],
    held: Tensor,
    later: Tensor | None,
    result: tuple[Tensor, Tensor, Tensor],
    *,
    feature_map: FeatureMap,
    somebody: Tensor | None,
    chunk: int,
    parameters: Sequence[Tensor],
) -> tuple[Tensor | None, ...]:
    """The gradients of query, key, value, ``held`` and the map's parameters.

    held: the sums before the chunks, (B, Hk, F, Ev + 1); later: the gradient of those after them;
    result: the gradient of the output, the output, and 1 / normaliser, (B, H, m, ·) each.
    """
    query, key, value = heads
    count = key.shape[2] // chunk
    with torch.enable_grad():
        leaves = query.detach().requires_grad_(), key.detach().requires_grad_()
        made = feature_map(leaves[0]), feature_map(leaves[1])
    fq = grouped(made[0].detach(), key.shape[1], chunk)
    fk = made[1].detach().unflatten(2, (count, chunk))
    nobody = None if somebody is None else ~somebody[:, None, :, None]
    if nobody is not None:
        fk = fk.masked_fill(nobody.unflatten(2, (count, chunk)), 0.0)
    ones = with_ones(value).unflatten(2, (count, chunk))
    above = grouped(total_slope(*result), key.shape[1], chunk)
    before = _before_each(held, fk.transpose(-2, -1) @ ones)
    after, first = _after_each(later, fq.transpose(-2, -1) @ above)
    weight = _lower(fq @ fk.transpose(-2, -1))
    slope = _lower(above @ ones.transpose(-2, -1))
    of_query = _plus(slope @ fk, above, before.transpose(-2, -1))
    of_key = _plus(slope.transpose(-2, -1) @ fq, ones, after.transpose(-2, -1))
    of_ones = _plus(weight.transpose(-2, -1) @ above, fk, after)
    key_slope = of_key.flatten(2, 3)
    if nobody is not None:
        key_slope = key_slope.masked_fill_(nobody, 0.0)
    slopes = ungrouped(of_query, query.shape, chunk), key_slope
    found = torch.autograd.grad(made, [*leaves, *parameters], slopes, allow_unused=True)
    return (*found[:2], of_ones.flatten(2, 3)[..., :-1], first, *found[2:])


def _before_each(held: Tensor, new: Tensor) -> Tensor:
    """The sums before each chunk."""
    sums = torch.empty_like(new)
    sums[:, :, 0] = held
    for t in range(1, new.shape[2]):
        torch.add(sums[:, :, t - 1], new[:, :, t - 1], out=sums[:, :, t])
    return sums


def _after_each(later: Tensor | None, new: Tensor) -> tuple[Tensor, Tensor]:
    """The sums of what comes after each chunk, and of everything."""
    sums = torch.empty_like(new)
    sums[:, :, -1] = 0.0 if later is None else later
    for t in reversed(range(new.shape[2] - 1)):
        torch.add(sums[:, :, t + 1], new[:, :, t + 1], out=sums[:, :, t])
    return sums, sums[:, :, 0] + new[:, :, 0]


def _lower(weight: Tensor) -> Tensor:
    """Pairs that look ahead put to 0, in place: (…, G·C, C)."""
    weight.unflatten(-2, (-1, weight.shape[-1])).tril_()
    return weight


def _plus(total: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """total + one @ other, in place."""
    total.flatten(0, 2).baddbmm_(one.flatten(0, 2), other.flatten(0, 2))
    return total
