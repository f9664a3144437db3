"""Linear layers that multiply one row as fast as the processor reads their weights.

Writing a token reads every weight once and multiplies it by a single row. torch's own product
streams the weights at a third of what the memory gives, or less. Two other operators do better:
oneDNN's on a plain float32 weight, and for bfloat16 FBGEMM's on a copy in float16, which holds a
bfloat16 weight exactly (below 2^-17 to a multiple of 2^-24). They are not public in torch: they
are wrapped here and nowhere else, ``can_pack`` says where they work, and without them the layers
multiply as torch does.

A float32 weight of more rows than columns, above all the head of a vocabulary, is read at the
memory's pace by torch's own product once it lies in memory column by column. That is a matter of
strides: the weight keeps its shape and its values, and there is one of it.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

# Rows to a column from which a float32 weight is laid out by columns.
_TALL = 2


@final
class PackedLinear(nn.Module):
    """y = x Wᵀ + b: x (…, in) → (…, out), with the parameters of the nn.Linear it was made of.

    Single rows in inference take the fast way; all else is torch's own product. A bfloat16 weight
    is then in memory twice. The copy is made when it is first used, and again when the weight has
    changed.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self._copy: object = None
        self._copied: tuple[tuple[int, int], ...] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if x.numel() != self.in_features or x.dim() < 2 or torch.is_grad_enabled():
            return linear(x, self.weight, self.bias)
        if self.weight.stride(0) == 1:  # column by column
            return linear(x, self.weight, self.bias)
        if self.weight.dtype is torch.float32:
            return _plain_product(x, self.weight, self.bias)
        return _half_product(x, self._packed()).to(x.dtype)

    def _packed(self) -> object:
        tensors = [x for x in (self.weight, self.bias) if x is not None]
        state = tuple((x.data_ptr(), x._version) for x in tensors)
        if self._copied != state:
            self._copy, self._copied = _pack_half(self.weight, self.bias), state
        return self._copy

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


def can_pack(weight: Tensor) -> bool:
    """Whether this torch and this processor have a faster way for a weight of its kind."""
    if weight.device.type != "cpu":
        return False
    if weight.dtype is torch.float32:
        return _has("mkldnn", "_linear_pointwise") and torch.backends.mkldnn.is_available()
    if weight.dtype is not torch.bfloat16 or not _has_fbgemm():
        return False
    return bool(weight.detach().abs().amax() <= torch.finfo(torch.float16).max)


def pack(module: nn.Module) -> int:
    """Replaces every nn.Linear inside the module for which ``can_pack``. Returns how many."""
    count = 0
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and can_pack(child.weight):
                if child.weight.dtype is torch.float32 and _tall(child.weight):
                    child.weight.data = child.weight.data.T.contiguous().T
                setattr(parent, name, PackedLinear(child))
                count += 1
    return count


def weight_bytes(module: nn.Module) -> int:
    """Bytes of the module's parameters, each counted once: what writing a token must read."""
    return sum(p.numel() * p.element_size() for p in module.parameters())


def _tall(weight: Tensor) -> bool:
    return weight.shape[0] >= _TALL * weight.shape[1]


def _has(library: str, *operators: str) -> bool:
    return all(hasattr(getattr(torch.ops, library), operator) for operator in operators)


def _has_fbgemm() -> bool:
    there = "fbgemm" in torch.backends.quantized.supported_engines
    return there and _has("quantized", "linear_prepack_fp16", "linear_dynamic_fp16")


def _plain_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


def _pack_half(weight: Tensor, bias: Tensor | None) -> object:
    plain = weight.detach().float(), None if bias is None else bias.detach().float()
    packed: object = torch.ops.quantized.linear_prepack_fp16(*plain)
    return packed


def _half_product(x: Tensor, packed: object) -> Tensor:
    product: Tensor = torch.ops.quantized.linear_dynamic_fp16(x.float(), packed)
    return product
