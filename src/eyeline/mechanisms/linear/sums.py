"""The sums that linear attention keeps: what keys add to them, and what queries read from them.

Σ_j φ(k_j) [v_j; 1]ᵀ is a matrix (F, Ev + 1): its last column is the normaliser's Σ_j φ(k_j). For
maps that give log φ each feature f has a peak of its own, the largest log φ_f(k_j) so far, and its
row holds Σ_j exp(log φ_f(k_j) − peak_f) [v_j; 1]ᵀ. A query's factor exp(log φ_f(q) + peak_f − M),
with M its largest exponent, is at most 1. So nothing overflows, and what vanishes is negligible
beside what does not, at any scale. Peaks are constants of the derivative: they cancel.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

# The peak of no key at all. A number, since differences of infinities are none.
NOTHING = -1e30


class Sums(NamedTuple):
    """total (…, F, Ev + 1), and peak (…, F) for maps that give log φ."""

    total: Tensor
    peak: Tensor | None


class Read(NamedTuple):
    """Numerator and normaliser [Σ_j w_j v_j; Σ_j w_j] (…, R, Ev + 1), each row exp(−log_scale)
    times what it stands for; log_scale (…, R, 1) is None where it is 0 throughout."""

    total: Tensor
    log_scale: Tensor | None


def no_sums(shape: tuple[int, ...], width: int, *, like: Tensor, logarithmic: bool) -> Sums:
    """The sums of no keys. shape: (…, F); width: of values."""
    total = like.new_zeros(*shape, width + 1)
    return Sums(total, like.new_full(shape, NOTHING) if logarithmic else None)


def with_ones(value: Tensor) -> Tensor:
    """[v; 1]: (…, Ev) to (…, Ev + 1)."""
    return torch.cat((value, value.new_ones(1).expand(*value.shape[:-1], 1)), -1)


def peak_of(key: Tensor) -> Tensor:
    """The largest log φ_f of some keys (…, S, F): (…, F). Nobody's is −inf."""
    return key.detach().amax(-2).clamp(min=NOTHING)


def absorbed(sums: Sums, key: Tensor, ones: Tensor) -> Sums:
    """The sums with more keys: φ or log φ (…, S, F), and [v; 1] (…, S, Ev + 1)."""
    if sums.peak is None:
        return Sums(sums.total + key.transpose(-2, -1) @ ones, None)
    peak = torch.maximum(sums.peak, peak_of(key))
    new = (key - peak.unsqueeze(-2)).exp().transpose(-2, -1) @ ones
    return Sums(sums.total * (sums.peak - peak).exp().unsqueeze(-1) + new, peak)


def read(sums: Sums, query: Tensor) -> Read:
    """What queries find in the sums: φ or log φ (…, R, F)."""
    if sums.peak is None:
        return Read(query @ sums.total, None)
    exponent = query + sums.peak.unsqueeze(-2)
    most = exponent.detach().amax(-1, keepdim=True)
    return Read((exponent - most).exp() @ sums.total, most)


def merged(one: Read, other: Read) -> Read:
    """Both together."""
    if one.log_scale is None or other.log_scale is None:
        return Read(one.total + other.total, None)
    most = torch.maximum(one.log_scale, other.log_scale)
    parts = (x.total * (x.log_scale - most).exp() for x in (one, other) if x.log_scale is not None)
    return Read(sum(parts, torch.zeros_like(one.total)), most)


def quotient(total: Tensor) -> Tensor:
    """Numerator over normaliser, (…, Ev + 1) to (…, Ev); 0 / 0 is 0, and so is its derivative."""
    out: Tensor = _Quotient.apply(total)[0]  # type: ignore[no-untyped-call]
    return out


def inverse_of(normaliser: Tensor) -> Tensor:
    """1 / normaliser, and 0 for 0."""
    inverse = normaliser.reciprocal()
    return inverse.masked_fill_(inverse.isinf(), 0.0)


class _Quotient(torch.autograd.Function):
    """Its derivative does not square a normaliser, which may be as small as floats are.

    1 / normaliser is a result too, so that second derivatives see that it depends on the sums.
    """

    @staticmethod
    def forward(ctx: Any, total: Tensor) -> tuple[Tensor, Tensor]:
        inverse = inverse_of(total[..., -1:])
        out = total[..., :-1] * inverse
        ctx.save_for_backward(out, inverse)
        ctx.set_materialize_grads(False)
        return out, inverse

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_inverse: Tensor | None) -> Tensor | None:
        out, inverse = ctx.saved_tensors
        slope = None if grad is None else total_slope(grad, out, inverse)
        if grad_inverse is None:
            return slope
        below = torch.nn.functional.pad(-grad_inverse * inverse.square(), (out.shape[-1], 0))
        return below if slope is None else slope + below


def total_slope(grad: Tensor, out: Tensor, inverse: Tensor) -> Tensor:
    """The derivative by numerator and normaliser; inverse: of the normaliser, 0 for that of 0."""
    below = -(grad * out).sum(-1, keepdim=True)
    return torch.cat((grad, below), -1) * inverse
