"""Causal linear attention as a scan over chunks, whose memory is linear in the length.

Forward: pieces of some chunks each, from first to last; only the sums between pieces are kept.
Backward: from last to first, each piece is computed again from the sums before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from eyeline.budgets import at_once, budgets
from eyeline.checks import wide_dtype
from eyeline.mechanisms.linear.chunks import Marks, chunk_slopes, dense_linear, run_chunks
from eyeline.mechanisms.linear.features import FeatureMap
from eyeline.mechanisms.linear.sums import (
    Sums,
    absorbed,
    inverse_of,
    no_sums,
    quotient,
    read,
    with_ones,
)

CHUNK = 64


class Scan(NamedTuple):
    """What a scan is told beside its tensors."""

    feature_map: FeatureMap
    marks: Marks


def causal_scan(query: Tensor, key: Tensor, value: Tensor, scan: Scan) -> Tensor:
    """out[i] = φ(q_i)ᵀ Σ_{j ≤ i} φ(k_j) v_jᵀ / φ(q_i)ᵀ Σ_{j ≤ i} φ(k_j), by slot.

    query (B, H, n, E), key (B, Hk, n, E), value (B, Hk, n, Ev) to (B, H, n, Ev). Sums are kept in
    float32, or float64 for float64. Second derivatives come from the dense formula.
    """
    out: Tensor = _Scan.apply(query, key, value, scan, *trained(scan.feature_map))  # type: ignore[no-untyped-call]
    return out


def scanned(
    heads: tuple[Tensor, Tensor, Tensor], sums: Sums, scan: Scan, *, carried: Tensor | None
) -> tuple[Tensor, Sums]:
    """The same after ``sums``, without derivatives; returns the sums that follow too."""
    with torch.no_grad():
        out, _, each = _forward(heads, sums, scan, carried)
    return out, each[-1]


def stepped(heads: tuple[Tensor, Tensor, Tensor], sums: Sums, scan: Scan) -> tuple[Tensor, Sums]:
    """``scanned`` for one token, which somebody is: while a model writes, a few operators."""
    (query, key, value), wide = heads, sums.total.dtype
    with torch.no_grad():
        fq, fk = (scan.feature_map(x.to(wide)) for x in (query, key))
        sums = absorbed(sums, fk, with_ones(value.to(wide)))
        total = read(sums, fq.reshape(*fk.shape[:2], -1, fk.shape[3])).total
        out = quotient(total).reshape(*query.shape[:3], -1)
    return out.to(query.dtype), sums


def start(key: Tensor, value: Tensor, feature_map: FeatureMap) -> Sums:
    """The sums of no keys, for keys and values of these shapes."""
    wide = key.new_empty(0, dtype=wide_dtype(key))
    shape = (*key.shape[:2], feature_map.count(key.shape[3]))
    return no_sums(shape, value.shape[3], like=wide, logarithmic=feature_map.logarithmic)


def trained(feature_map: FeatureMap) -> list[Tensor]:
    """The map's parameters that a derivative is asked for."""
    each = feature_map.parameters() if isinstance(feature_map, nn.Module) else ()
    return [x for x in each if x.requires_grad]


def _forward(
    heads: tuple[Tensor, Tensor, Tensor], sums: Sums, scan: Scan, carried: Tensor | None
) -> tuple[Tensor, Tensor, list[Sums]]:
    """Output, what it was multiplied by (1 / normaliser), and the sums before each piece."""
    query, _, value = heads
    out = query.new_empty(*query.shape[:3], value.shape[3])
    inverse, each = sums.total.new_empty(*query.shape[:3], 1), [sums]
    for first, stop, chunk in _pieces(heads, sums):
        total, after = run_chunks(
            _cut(heads, first, stop), each[-1], feature_map=scan.feature_map,
            marks=scan.marks.part(first, stop), carried=_before(scan, first, carried),
            chunk=chunk,
        )  # fmt: skip
        inverse[:, :, first:stop] = inverse_of(total[..., -1:])
        out[:, :, first:stop] = total[..., :-1] * inverse[:, :, first:stop]
        each.append(after)
    return out, inverse, each


def _pieces(heads: tuple[Tensor, ...], sums: Sums) -> Iterator[tuple[int, int, int]]:
    """start, stop and chunk of each piece; what does not fill a chunk is the last."""
    batch, count, length, _ = heads[0].shape
    features, width = sums.total.shape[-2:]
    row = batch * count * CHUNK * (CHUNK + 2 * features + 2 * width)
    step = at_once(row, budgets.scanned) * CHUNK
    whole = length - length % CHUNK
    for first in range(0, whole, step):
        yield first, min(first + step, whole), CHUNK
    if whole < length:
        yield whole, length, length - whole


def _cut(heads: tuple[Tensor, ...], first: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
    wide = wide_dtype(heads[0])
    query, key, value = (x[:, :, first:stop].to(wide) for x in heads)
    return query, key, value


def _before(scan: Scan, first: int, carried: Tensor | None) -> Tensor | None:
    """The document that the sums before a piece are of."""
    if scan.marks.segments is None or first == 0:
        return carried
    return scan.marks.segments[:, first - 1]


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, scan: Scan, *parameters: Tensor
    ) -> Tensor:
        heads = query, key, value
        out, inverse, each = _forward(heads, start(key, value, scan.feature_map), scan, None)
        flat = [x for sums in each[:-1] for x in sums if x is not None]
        ctx.save_for_backward(*heads, *parameters, out, inverse, *flat)
        ctx.scan, ctx.parameters = scan, len(parameters)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        query, key, value, *rest = ctx.saved_tensors
        parameters, (out, inverse, *flat) = rest[: ctx.parameters], rest[ctx.parameters :]
        inputs = query, key, value, *parameters
        if torch.is_grad_enabled():
            found = _differentiable(inputs, ctx.scan, grad, ctx.needs_input_grad)
        else:
            found = _gradients(inputs, flat, ctx.scan, (grad, out, inverse))
        return *found[:3], None, *found[3:]


def _differentiable(
    inputs: tuple[Tensor, ...], scan: Scan, grad: Tensor, wanted: Sequence[bool]
) -> list[Tensor | None]:
    heads = inputs[0], inputs[1], inputs[2]
    out = dense_linear(*heads, scan.feature_map, scan.marks, causal=True)
    needed = [*wanted[:3], *wanted[4:]]
    some = [x for x, need in zip(inputs, needed, strict=True) if need]
    found = iter(torch.autograd.grad(out, some, grad, create_graph=True, allow_unused=True))
    return [next(found) if need else None for need in needed]


def _gradients(
    inputs: tuple[Tensor, ...],
    flat: Sequence[Tensor],
    scan: Scan,
    result: tuple[Tensor, Tensor, Tensor],
) -> list[Tensor | None]:
    """result: the gradient of the output, the output, and 1 / normaliser."""
    heads, parameters = (inputs[0], inputs[1], inputs[2]), inputs[3:]
    slopes = [torch.empty_like(x) for x in heads]
    more = [torch.zeros_like(x) for x in parameters]
    parts = 2 if scan.feature_map.logarithmic else 1
    each = [Sums(*flat[i : i + parts], *[None] * (2 - parts)) for i in range(0, len(flat), parts)]
    pieces = list(_pieces(heads, start(inputs[1], inputs[2], scan.feature_map)))
    by_hand = not scan.feature_map.logarithmic and scan.marks.segments is None
    later: Tensor | None = None
    for (first, stop, chunk), sums in zip(reversed(pieces), reversed(each), strict=True):
        part = Scan(scan.feature_map, scan.marks.part(first, stop))
        cut = _cut(heads, first, stop)
        own = tuple(x[:, :, first:stop].to(cut[0].dtype) for x in result)
        if by_hand:
            found = chunk_slopes(
                cut, sums.total, later, (own[0], own[1], own[2]), feature_map=part.feature_map,
                somebody=part.marks.somebody, chunk=chunk, parameters=parameters,
            )  # fmt: skip
        else:
            carried = _before(scan, first, None)
            found = _piece_back(cut, sums, later, own[0], part, carried, chunk, parameters)
        for slope, new in zip(slopes, found, strict=False):
            slope[:, :, first:stop] = new if new is not None else 0
        later = found[3]
        for x, new in zip(more, found[4:], strict=True):
            x += new if new is not None else 0
    return [*slopes, *more]


def _piece_back(
    heads: tuple[Tensor, ...],
    sums: Sums,
    later: Tensor | None,
    grad: Tensor,
    scan: Scan,
    carried: Tensor | None,
    chunk: int,
    parameters: Sequence[Tensor],
) -> tuple[Tensor | None, ...]:
    """The gradients of a piece by torch itself, which differentiates its computation."""
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in heads]
        held = sums.total.detach().requires_grad_()
        total, after = run_chunks(
            (leaves[0], leaves[1], leaves[2]), Sums(held, sums.peak),
            feature_map=scan.feature_map, marks=scan.marks, carried=carried, chunk=chunk,
        )  # fmt: skip
        ends, above = [quotient(total)], [grad]
    if later is not None:
        ends, above = [*ends, after.total], [*above, later]
    return torch.autograd.grad(ends, [*leaves, held, *parameters], above, allow_unused=True)
