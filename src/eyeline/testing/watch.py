"""Watch what a computation allocates: no tensor of n² elements may appear anywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def largest_tensor(run: Callable[[], object]) -> int:
    """The number of elements in the largest storage that any operation in ``run`` made or took.

    Views count by their storage, so an expanded tensor counts by what it really holds.
    """
    watch = _Watch()  # type: ignore[no-untyped-call]
    with watch:
        run()
    return watch.most


class _Watch(TorchDispatchMode):
    most = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs if kwargs is not None else {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.layout == torch.strided:
                self.most = max(self.most, leaf.untyped_storage().nbytes() // leaf.element_size())
        return result
