"""The same product by PyTorch's own fused CPU operator: the one place that names it.

The operator is private and has traps, met here: it gives log-sum-exp 0 for a row that may look at
nobody; it reads rows as if their last stride were 1; it needs Ev = E and a float mask. Shapes as
in ``plain``.
"""

from __future__ import annotations

import torch
from torch import Tensor

NAME = "flash"

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_FORWARD = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_BACKWARD = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)


def serves(query: Tensor, value: Tensor) -> bool:
    """Whether the operator can take tensors like these."""
    available = _FORWARD is not None and _BACKWARD is not None
    fits = query.device.type == "cpu" and query.dtype in _DTYPES
    return available and fits and query.shape[-1] == value.shape[-1] > 0


def forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp; 0 and -inf for a row that may look at nobody."""
    assert _FORWARD is not None
    out, lse = _FORWARD(q, k, v, 0.0, False, attn_mask=_additive(mask, q.dtype), scale=scale)
    if mask is not None:
        empty = ~mask.any(-1)
        if bool(empty.any()):
            lse = lse.masked_fill(empty, -torch.inf)
            out = out.masked_fill(empty.unsqueeze(-1), 0.0)
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
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, given the *merged* out and lse of each row (+inf for empty rows)."""
    assert _BACKWARD is not None
    bias = _additive(mask, q.dtype)
    return _BACKWARD(grad, q, k, v, out, lse, 0.0, False, attn_mask=bias, scale=scale)  # type: ignore[no-any-return]


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    if mask is None:
        return None
    return torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, -torch.inf)
