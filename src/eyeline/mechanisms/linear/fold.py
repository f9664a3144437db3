"""Linear attention of all queries to all keys: keys are summed up once, and queries read the sums.

Features are made for some tokens at a time and never kept: the backward pass makes them again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from eyeline.budgets import budgets
from eyeline.mechanisms.linear.chunks import Marks, dense_linear
from eyeline.mechanisms.linear.features import FeatureMap
from eyeline.mechanisms.linear.scan import start, trained
from eyeline.mechanisms.linear.sums import (
    Sums,
    absorbed,
    inverse_of,
    quotient,
    read,
    total_slope,
    with_ones,
)


def folded(
    query: Tensor, key: Tensor, value: Tensor, feature_map: FeatureMap, somebody: Tensor | None
) -> Tensor:
    """out[i] = φ(q_i)ᵀ Σ_j φ(k_j) v_jᵀ / φ(q_i)ᵀ Σ_j φ(k_j), over all keys of somebody.

    query (B, H, L, E), key (B, Hk, S, E), value (B, Hk, S, Ev); somebody: bool (B or 1, S). Sums
    are kept in float32, or float64 for float64. Second derivatives come from the dense formula.
    """
    out: Tensor = _Fold.apply(  # type: ignore[no-untyped-call]
        query, key, value, feature_map, somebody, *trained(feature_map)
    )
    return out


def summed(key: Tensor, value: Tensor, feature_map: FeatureMap, somebody: Tensor | None) -> Sums:
    """The sums of all keys."""
    sums = start(key, value, feature_map)
    for part in _pieces(key, sums):
        fk = _keys(key[:, :, part].to(sums.total.dtype), feature_map, somebody, part)
        sums = absorbed(sums, fk, with_ones(value[:, :, part].to(sums.total.dtype)))
    return sums


class _Fold(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        feature_map: FeatureMap,
        somebody: Tensor | None,
        *parameters: Tensor,
    ) -> Tensor:
        sums = summed(key, value, feature_map, somebody)
        out = query.new_empty(*query.shape[:3], value.shape[3])
        normaliser = sums.total.new_empty(*query.shape[:3], 1)
        for part in _pieces(query, sums):
            fq = feature_map(query[:, :, part].to(sums.total.dtype))
            total = _apart(read(sums, _together(fq, key.shape[1])).total, fq)
            out[:, :, part], normaliser[:, :, part] = quotient(total), total[..., -1:]
        peak = sums.peak if sums.peak is not None else sums.total.new_empty(0)
        ctx.save_for_backward(query, key, value, *parameters, out, normaliser, sums.total, peak)
        ctx.given = feature_map, somebody
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        feature_map, somebody = ctx.given
        *inputs, out, normaliser, total, peak = ctx.saved_tensors
        if torch.is_grad_enabled():
            marks = Marks(None, somebody)
            heads = inputs[0], inputs[1], inputs[2]
            result = dense_linear(*heads, feature_map, marks, causal=False)
            needed = [*ctx.needs_input_grad[:3], *ctx.needs_input_grad[5:]]
            some = [x for x, need in zip(inputs, needed, strict=True) if need]
            each = iter(
                torch.autograd.grad(result, some, grad, create_graph=True, allow_unused=True)
            )
            found = [next(each) if need else None for need in needed]
        else:
            sums = Sums(total, peak if feature_map.logarithmic else None)
            work = _Backward(inputs, feature_map, somebody, sums)
            work.queries(grad, out, normaliser)
            work.keys()
            found = [*work.slopes, *work.more]
        return *found[:3], None, None, *found[3:]


class _Backward:
    """Gradients piece by piece: of the queries and the sums first, then of keys and values."""

    def __init__(
        self, inputs: Sequence[Tensor], feature_map: FeatureMap, somebody: Tensor | None, sums: Sums
    ) -> None:
        (self.query, self.key, self.value), self.parameters = inputs[:3], inputs[3:]
        self.feature_map, self.somebody, self.sums = feature_map, somebody, sums
        self.slopes = [torch.empty_like(x) for x in inputs[:3]]
        self.more = [torch.zeros_like(x) for x in self.parameters]
        self.above = torch.zeros_like(sums.total)

    def queries(self, grad: Tensor, out: Tensor, normaliser: Tensor) -> None:
        wide, shared = self.sums.total.dtype, self.key.shape[1]
        for part in _pieces(self.query, self.sums):
            x, made = self._features(self.query[:, :, part])
            fq, slope = made.detach(), grad[:, :, part].to(wide)
            inverse = inverse_of(normaliser[:, :, part])
            result = out[:, :, part].to(wide)
            total = _together(total_slope(slope, result, inverse), shared)
            phi = self._read(_together(fq, shared))
            self.above += phi.transpose(-2, -1) @ total
            back = _apart(total @ self.sums.total.transpose(-2, -1), fq)
            back = back * _apart(phi, fq) if self.feature_map.logarithmic else back
            self._through(made, x, back, self.slopes[0], part)

    def keys(self) -> None:
        wide = self.sums.total.dtype
        for part in _pieces(self.key, self.sums):
            x, made = self._features(self.key[:, :, part])
            phi = _keys(made.detach(), None, self.somebody, part, self.feature_map.logarithmic)
            if self.sums.peak is not None:
                phi = (phi - self.sums.peak.unsqueeze(-2)).exp()
            self.slopes[2][:, :, part] = phi @ self.above[..., :-1]
            ones = with_ones(self.value[:, :, part].to(wide))
            back = ones @ self.above.transpose(-2, -1)
            if self.feature_map.logarithmic:
                back = back * phi
            elif self.somebody is not None:
                back = back.masked_fill(~self.somebody[:, None, part, None], 0.0)
            self._through(made, x, back, self.slopes[1], part)

    def _features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            leaf = x.to(self.sums.total.dtype).detach().requires_grad_()
            return leaf, self.feature_map(leaf)

    def _read(self, fq: Tensor) -> Tensor:
        """The factors of the queries in the sums."""
        if self.sums.peak is None:
            return fq
        exponent = fq + self.sums.peak.unsqueeze(-2)
        phi: Tensor = (exponent - exponent.amax(-1, keepdim=True)).exp()
        return phi

    def _through(self, made: Tensor, x: Tensor, back: Tensor, slope: Tensor, part: slice) -> None:
        found = torch.autograd.grad(made, [x, *self.parameters], back, allow_unused=True)
        slope[:, :, part] = found[0]
        for total, new in zip(self.more, found[1:], strict=True):
            total += new if new is not None else 0


def _keys(
    x: Tensor,
    feature_map: FeatureMap | None,
    somebody: Tensor | None,
    part: slice,
    logarithmic: bool | None = None,
) -> Tensor:
    """The features of keys, silent where nobody stands."""
    if feature_map is not None:
        x, logarithmic = feature_map(x), feature_map.logarithmic
    if somebody is None:
        return x
    nothing = -torch.inf if logarithmic else 0.0
    return x.masked_fill(~somebody[:, None, part, None], nothing)


def _pieces(x: Tensor, sums: Sums) -> Iterator[slice]:
    batch, heads, length, _ = x.shape
    step = max(budgets.folded // max(batch * heads * sum(sums.total.shape[-2:]), 1), 16)
    return (slice(first, min(first + step, length)) for first in range(0, length, step))


def _together(x: Tensor, shared: int) -> Tensor:
    """(B, H, m, F) to (B, Hk, G·m, F)."""
    together: Tensor = x.unflatten(1, (shared, -1)).flatten(2, 3)
    return together


def _apart(x: Tensor, like: Tensor) -> Tensor:
    """(B, Hk, G·m, ·) to (B, H, m, ·)."""
    return x.reshape(*like.shape[:3], x.shape[-1])
