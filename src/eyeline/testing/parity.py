"""How close is close enough: the yardstick is float64, the measure the unfused computation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from eyeline.kernels import reference
from eyeline.kernels.request import Request, mask_of, pairs_of

FLOAT64_TOLERANCE = 1e-10


def with_dtype(request: Request, dtype: torch.dtype) -> Request:
    """The same numbers in another type, each tensor a new leaf that takes gradients."""
    q, k, v = (
        x.detach().to(dtype).requires_grad_() for x in (request.query, request.key, request.value)
    )
    return replace(request, query=q, key=k, value=v)


def gradients(
    request: Request, out: Tensor, above: Tensor, learned: Sequence[Tensor] = ()
) -> tuple[Tensor, ...]:
    """d(Σ out·above) for query, key, value and what is learned; 0 where nothing depends on it."""
    inputs = (request.query, request.key, request.value, *learned)
    if not out.requires_grad:
        return tuple(torch.zeros_like(x) for x in inputs)
    total = (out * above.to(out.dtype)).sum()
    found = torch.autograd.grad(total, inputs, allow_unused=True)
    return tuple(
        torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)
    )


def unfused(request: Request) -> tuple[Tensor, Tensor]:
    """The computation a user would write, every step in the type of the inputs: output, lse."""
    k = request.key.repeat_interleave(request.groups, 1)
    v = request.value.repeat_interleave(request.groups, 1)
    allowed = mask_of(request)
    score = (request.query @ k.transpose(-2, -1)) * request.scale
    pairs = pairs_of(request)
    for step in request.score_steps:
        score = step.define(score, pairs).to(k.dtype)
    some = allowed.any(-1, keepdim=True)
    score = score.masked_fill(~(allowed | ~some), -torch.inf)
    weight = torch.softmax(score, -1).masked_fill(~allowed, 0.0)
    for change in request.weight_steps:
        weight = change.define(weight, pairs).to(k.dtype)
    out = weight @ v
    for extra in request.output_steps:
        out = out + extra.define(weight.to(_wide(k)), pairs).to(k.dtype)
    return out, score.logsumexp(-1)


def oracle(request: Request, above: Tensor, learned: Sequence[Tensor] = ()) -> tuple[Tensor, ...]:
    """Output and gradients of the reference in float64, for the numbers of ``request``."""
    wide = with_dtype(request, torch.float64)
    out, _ = reference.run(wide)
    return out.detach(), *gradients(wide, out, above, learned)


def rounding_steps(request: Request, above: Tensor) -> dict[str, float]:
    """What one rounding in the inputs' type can do to each result.

    A score is rounded by eps·|score|, and its weight changes by that share. The slope of a score,
    above·v, is rounded by eps·|above|·|v| before what cancels is taken away.
    """
    wide = with_dtype(request, torch.float64)
    weight, above = reference.weights(wide)[0].detach(), above.double().abs()
    q, k, v = (x.detach().abs() for x in (wide.query, wide.key, wide.value))
    k, v = (x.repeat_interleave(request.groups, 1) for x in (k, v))
    score = _size(q @ k.transpose(-2, -1)) * request.scale
    slope = weight * (above @ v.transpose(-2, -1)) * request.scale
    sums = {
        "output": weight @ v,
        "dq": slope @ k,
        "dk": (slope.transpose(-2, -1) @ q).unflatten(1, (-1, request.groups)).sum(2),
        "dv": (weight.transpose(-2, -1) @ above).unflatten(1, (-1, request.groups)).sum(2),
        "lse": torch.ones(1),
    }
    # A learned number may get the slopes of all pairs, with the query or the gradient above.
    sums["learned"] = slope.sum() * max(1.0, _size(q)) + weight.sum() * _size(above)
    eps = torch.finfo(request.query.dtype).eps * (1 + score)
    return {name: eps * _size(x) for name, x in sums.items()}


def assert_close(
    name: str, found: Tensor, right: Tensor, plain: Tensor, step: float, dtype: torch.dtype
) -> None:
    """found is as right as ``plain``, the unfused computation in the same type, allows.

    float64: 1e-10. Else the error is at most twice the unfused one, and one rounding step.
    """
    error = distance(found, right)
    if dtype == torch.float64:
        allowed = FLOAT64_TOLERANCE * max(1.0, _size(right))
    else:
        allowed = 2 * distance(plain, right) + step
    assert error <= allowed, f"{name}: error {error:.3g}, allowed {allowed:.3g}"


def distance(found: Tensor, right: Tensor) -> float:
    """The greatest difference; NaN where the reference has none is an error."""
    assert found.shape == right.shape, f"shape {tuple(found.shape)}, not {tuple(right.shape)}"
    difference = (found.detach().double() - right.double()).abs()
    assert not difference.isnan().any(), "NaN where the reference has none"
    return float(difference.max()) if difference.numel() else 0.0


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _size(x: Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0
