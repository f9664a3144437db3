"""Linear layers whose weights lie in memory in the order the processor reads them.

Writing one token reads every weight once and multiplies it by one row, so its speed is the speed
of reading. oneDNN has a blocked layout that it streams up to twice as fast as a plain matrix, and
multiplies no slower for many rows. The two operators that make and use it are not public in
torch: they are wrapped here, and nowhere else, and ``can_pack`` says where they work.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from eyeline.errors import NotSupported

# oneDNN chooses the layout for a number of rows. For float32 it takes a plain one when told a
# single row, and that is the slower one, even for a single row.
_ROWS = 512


@final
class PackedLinear(nn.Module):
    """y = x Wᵀ + b: x (…, in) → (…, out), for inference on a CPU. It has no parameters.

    The values are those of the layer it was made of; ``weight`` gives them back as a plain
    (out, in) tensor. Raises NotSupported when asked for gradients.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = None if linear.bias is None else linear.bias.detach()
        self.nbytes = linear.weight.numel() * linear.weight.element_size()
        self._packed = _reorder(linear.weight.detach())

    @property
    def weight(self) -> Tensor:
        """A plain copy of the weight, (out, in)."""
        return self._packed.to_dense()

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad and torch.is_grad_enabled():
            raise NotSupported(
                "a packed linear layer has no gradient: load the model with packed=False to "
                "train it, or run under torch.no_grad()"
            )
        return _multiply(x, self._packed, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


def can_pack(dtype: torch.dtype, device: torch.device | str = "cpu") -> bool:
    """Whether this torch and this processor have a packed layout for the dtype."""
    operators = ("_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported")
    if torch.device(device).type != "cpu" or not _has(*operators):
        return False
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype is torch.float32


def pack(module: nn.Module) -> int:
    """Replaces every nn.Linear inside the module that can be packed. Returns how many.

    The plain weights are released, unless something else holds them (a tied embedding).
    """
    count = 0
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and can_pack(child.weight.dtype, child.weight.device):
                setattr(parent, name, PackedLinear(child))
                count += 1
    return count


def weight_bytes(module: nn.Module) -> int:
    """Bytes of all weights that the module holds, plain and packed, each counted once."""
    plain = sum(p.numel() * p.element_size() for p in module.parameters())
    return plain + sum(m.nbytes for m in module.modules() if isinstance(m, PackedLinear))


def _has(*operators: str) -> bool:
    return torch.backends.mkldnn.is_available() and all(
        hasattr(torch.ops.mkldnn, operator) for operator in operators
    )


def _reorder(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS)
    return packed


def _multiply(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return product
