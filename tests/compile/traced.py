"""What the tests of torch.compile share: tensors, a compiler that counts graphs, a comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

LENGTHS = (
    7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 521, 523,
)  # fmt: skip
"""Twenty, short and long: below and above what a dense mask serves."""


def tensors(
    queries: int,
    keys: int | None = None,
    *,
    heads: int = 4,
    key_heads: int = 2,
    width: int = 5,
    value_width: int = 3,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor, Tensor]:
    """Random query, key and value for two batch rows, which take gradients."""
    generator = torch.Generator().manual_seed(queries)
    keys = keys if keys is not None else queries
    shapes = (heads, queries, width), (key_heads, keys, width), (key_heads, keys, value_width)
    made = (torch.randn(2, *shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return tuple(x.to(dtype).requires_grad_() for x in made)  # type: ignore[return-value]


class Counted:
    """A function, compiled whole, and how many graphs it took."""

    def __init__(self, function: Callable[..., Any], backend: str = "eager") -> None:
        torch._dynamo.reset()
        self._counter = CompileCounterWithBackend(backend)
        self._compiled = torch.compile(function, fullgraph=True, backend=self._counter)

    def __call__(self, *arguments: Any) -> Any:
        return self._compiled(*arguments)

    @property
    def graphs(self) -> int:
        return self._counter.frame_count


def assert_same(
    found: Tensor, right: Tensor, leaves: Sequence[Tensor] = (), *, tolerance: float = 1e-10
) -> None:
    """Outputs are equal, and so are the gradients of the leaves."""
    torch.testing.assert_close(found, right, rtol=tolerance, atol=tolerance)
    if not leaves:
        return
    above = torch.linspace(-1, 1, right.numel(), dtype=right.dtype).view_as(right)
    ours, theirs = (
        torch.autograd.grad(x, leaves, above, allow_unused=True, retain_graph=x is right)
        for x in (found, right)
    )
    for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert (a is None) == (b is None), f"leaf {index}"
        if a is not None:
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@contextmanager
def deterministic() -> Iterator[None]:
    """torch's deterministic mode, for a while."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
