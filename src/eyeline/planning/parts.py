"""The parts of a plan: shapes of work that a kernel can do in one call, as plain numbers.

Parts are disjoint: together they hold every allowed pair once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from torch import Tensor

from eyeline.planning.orders import Order

if TYPE_CHECKING:
    from eyeline.planning.plans import Plan


@final
@dataclass(frozen=True, eq=False)
class Run:
    """``count`` rectangles of one shape and mask, each ``step`` further along the diagonal.

    Rectangle i: queries q0 + i·step … + rows - 1, keys k0 + i·step … + columns - 1. Its tensors
    are overlapping views, nothing is copied.
    mask: bool (rows, columns) shared by all of them, or None when every pair is allowed.
    """

    q0: int
    k0: int
    rows: int
    columns: int
    step: int
    count: int
    mask: Tensor | None


@final
@dataclass(frozen=True, eq=False)
class Slab:
    """One rectangle of any size.

    masked: whether pairs within it are forbidden; its mask is then made when it is used.
    """

    q0: int
    k0: int
    rows: int
    columns: int
    masked: bool


@final
@dataclass(frozen=True, eq=False)
class Gathered:
    """Rectangles of one shape without masks at arbitrary places; their tensors are copied.

    q0, k0: int64 (N,), the first query and key of each; no query lies in two of them.
    """

    q0: Tensor
    k0: Tensor
    rows: int
    columns: int


@final
@dataclass(frozen=True, eq=False)
class Reordered:
    """A plan for queries and keys that were picked and brought into another order.

    q_order, k_order: None for all slots as they stand. The plan's own slots are the places there.
    """

    q_order: Order | None
    k_order: Order | None
    plan: Plan


Block = Run | Slab | Gathered
"""A part that is rectangles of the sequence as it stands."""

Part = Block | Reordered
