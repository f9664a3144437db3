"""The shape of an attention call that is measured, and the calls themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from eyeline.checks import check_sizes
from eyeline.errors import InvalidArgument
from eyeline.exact import attention
from eyeline.mechanisms import Heads
from eyeline.patterns import Pattern

Attend = Callable[..., Tensor]


@dataclass(frozen=True)
class Shape:
    """Batch 1, ``heads`` of width ``dim``, keys in ``kv_heads``, forward or with backward.

    Raises InvalidArgument for sizes that do not fit together.
    """

    heads: int = 8
    dim: int = 64
    kv_heads: int | None = None
    dtype: torch.dtype = torch.float32
    backward: bool = False

    def __post_init__(self) -> None:
        check_sizes(heads=self.heads, dim=self.dim, kv_heads=self.groups)
        if self.heads % self.groups:
            raise InvalidArgument(
                f"{self.heads} query heads cannot share {self.groups} key heads evenly: the first "
                "must be a multiple of the second"
            )

    @property
    def groups(self) -> int:
        """The number of key heads."""
        return self.kv_heads if self.kv_heads is not None else self.heads

    @property
    def groups_of_heads(self) -> Heads:
        """For a mechanism's constructor."""
        return Heads(self.heads, self.groups, self.dim)

    def tensors(self, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value with random numbers."""
        query, key, value = (
            torch.randn(size, dtype=self.dtype, requires_grad=self.backward)
            for size in self._sizes(length)
        )
        return query, key, value

    def _sizes(self, length: int) -> list[tuple[int, int, int, int]]:
        heads = (self.heads, self.groups, self.groups)
        return [(1, each, length, self.dim) for each in heads]

    def run(self, attend: Attend, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The output, and the gradients with ``backward``, those of a module's parameters too."""
        if not self.backward:
            with torch.inference_mode():
                return (attend(*tensors),)
        out = attend(*tensors)
        trained = tuple(attend.parameters()) if isinstance(attend, nn.Module) else ()
        inputs = (*tensors, *trained)
        slopes = torch.autograd.grad(out, inputs, torch.ones_like(out), allow_unused=True)
        return (out.detach(), *(x for x in slopes if x is not None))

    def results(self, length: int) -> list[Tensor]:
        """Tensors of the sizes of what ``run`` returns, and of the gradient that it is given."""
        query, *others = self._sizes(length)
        sizes = [query, query, query, *others] if self.backward else [query]
        return [torch.ones(size, dtype=self.dtype) for size in sizes]

    @property
    def text(self) -> str:
        """In words, for a title."""
        name = str(self.dtype).removeprefix("torch.")
        shared = f" on {self.groups} key heads" if self.groups != self.heads else ""
        way = "forward and backward" if self.backward else "forward"
        return f"{way}, {name}, batch 1, {self.heads} heads of {self.dim}{shared}"


def through(pattern: Pattern, backend: str) -> Attend:
    """``attention`` under a pattern."""
    return lambda query, key, value: attention(query, key, value, pattern, backend=backend)


def sdpa_causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """What is in use today: torch's own causal attention."""
    grouped = query.shape[1] != key.shape[1]
    return scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)
