"""Products of a block's rows with vectors that stand in a table: (N, H, R, ·) and (M, G, U, E).

M is 1 where all N blocks read the same vectors, G where all heads do; then the rows are one matrix.
"""

from __future__ import annotations

from torch import Tensor


def times(x: Tensor, table: Tensor) -> Tensor:
    """x (N, H, R, E) with each vector: (N, H, R, U)."""
    return _product(x, table.transpose(-2, -1))


def mix(rows: Tensor, table: Tensor) -> Tensor:
    """The sum of the vectors, each as often as rows (N, H, R, U) say: (N, H, R, E)."""
    return _product(rows, table)


def outer(rows: Tensor, x: Tensor, table: Tensor) -> Tensor:
    """Σ rows ⊗ x over all that share a vector, (M, G, U, E): the gradient of ``mix``."""
    if table.shape[:2] == (1, 1):
        shared: Tensor = rows.flatten(0, 2).transpose(0, 1) @ x.flatten(0, 2)
        return shared[None, None]
    found = rows.transpose(-2, -1) @ x
    if table.shape[0] == 1:
        found = found.sum(0, keepdim=True)
    return found.sum(1, keepdim=True) if table.shape[1] == 1 else found


def _product(x: Tensor, matrix: Tensor) -> Tensor:
    if matrix.shape[:2] == (1, 1):
        return (x.flatten(0, 2) @ matrix[0, 0]).view(*x.shape[:3], matrix.shape[-1])
    return x @ matrix
