"""The same product by PyTorch's own fused CPU operator: the one place that names it.

The operator is private and has traps, met here: it gives log-sum-exp 0 for a row that may look at
nobody; it reads rows as if their last stride were 1; it needs Ev = E and a float mask. Shapes as
in ``plain``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from eyeline.kernels import product
from eyeline.kernels.merge import Results
from eyeline.kernels.product import Steps, barred, sees_somebody
from eyeline.memory import remembered

NAME = "flash"

Blocks = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values."""

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_FORWARD = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_BACKWARD = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)


def serves(query: Tensor, value: Tensor) -> bool:
    """Whether the operator can take tensors like these."""
    available = _FORWARD is not None and _BACKWARD is not None
    fits = query.device.type == "cpu" and query.dtype in _DTYPES
    return available and fits and query.shape[-1] == value.shape[-1] > 0


def results(
    blocks: Blocks, mask: Tensor | None, scale: float, *, steps: Steps | None, fused: bool
) -> Results:
    """Output and log-sum-exp, by this operator where ``fused``, else by the plain product.

    fused: needs ``serves`` and steps that only add numbers.
    """
    if fused:
        return forward(*blocks, mask, scale, None if steps is None else steps.bias())
    return product.forward(*blocks, mask, scale, steps)


def gradients(
    grads: tuple[Tensor, Tensor | None],
    blocks: Blocks,
    merged: Results,
    mask: Tensor | None,
    scale: float,
    *,
    steps: Steps | None,
    fused: bool,
) -> Blocks:
    """Those of queries, keys and values, as ``results``. grads: of output and log-sum-exp.

    fused: needs also that nothing is asked of the log-sum-exp, and that no step is trained.
    """
    if fused:
        bias = None if steps is None else steps.bias()
        return backward(grads[0], *blocks, *merged, mask, scale, bias)
    return product.backward(*grads, *blocks, *merged, mask, scale, steps)


def forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp; 0 and -inf for a row that may look at nobody.

    bias: (N or 1, H or 1, R, C), added to the scores.
    """
    assert _FORWARD is not None
    out, lse = _FORWARD(q, k, v, 0.0, False, attn_mask=_additive(mask, bias, q), scale=scale)
    if mask is not None:
        empty = ~sees_somebody(mask)
        if bool(empty.any()):
            lse.masked_fill_(empty, -torch.inf)
            out.masked_fill_(empty.unsqueeze(-1), 0.0)
    return out, lse


def backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    mask: Tensor | None,
    scale: float,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, given the *merged* out and lse of each row (+inf for empty rows)."""
    assert _BACKWARD is not None
    grad, q, k, v, out = (_computed(x) for x in (grad, q, k, v, out))
    added = _additive(mask, bias, q)
    return _BACKWARD(grad, q, k, v, out, lse, 0.0, False, attn_mask=added, scale=scale)  # type: ignore[no-any-return]


def _computed(x: Tensor) -> Tensor:
    """x in the type that the backward pass computes with.

    Without matrix units for half types it is slower in them than in float32, and rounds more.
    """
    halved = x.dtype.itemsize < 4 and not _has_units(x.dtype)
    return x.float() if halved else x


@remembered(4)
def _has_units(dtype: torch.dtype) -> bool:
    name = "_is_amx_fp16_supported" if dtype is torch.float16 else "_is_amx_tile_supported"
    return bool(getattr(torch.cpu, name, lambda: False)())


def _additive(mask: Tensor | None, bias: Tensor | None, q: Tensor) -> Tensor | None:
    """What the operator adds to the scores: 0 or the bias, -inf for who may not look."""
    if bias is not None:
        return bias if mask is None else bias.masked_fill(~mask, -torch.inf)
    if mask is None:
        return None
    return barred(mask, q.dtype)
