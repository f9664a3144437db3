"""Plan: what planning makes. The shapes of work it is made of, what they compute and cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from eyeline.patterns import Pattern
from eyeline.tokens import Tokens
from eyeline.tokens.ordering import Ordering

# The parts of a plan: shapes of work that a kernel can do in one call, as plain numbers.
#
# Parts are disjoint: together they hold every allowed pair once.


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

    q_order: Ordering | None
    k_order: Ordering | None
    plan: Plan


Block = Run | Slab | Gathered
"""A part that is rectangles of the sequence as it stands."""

Part = Block | Reordered


# Plan: what planning makes. Its parts, what they compute and cost, and its printed form.

# What a part takes apart from its pairs, and what a place in another order takes, in pairs.
_CALL = 4096
_PLACE = 64


@final
@dataclass(frozen=True, eq=False)
class Plan:
    """A pattern laid out for given tokens: disjoint parts that hold every allowed pair once.

    rule: what is left of the pattern for the parts in the order of the sequence; the others, of
    which each has a plan of its own, hold the rest. rejected: the cost of the plan in another
    order that was considered, at most; None if there was none.
    """

    pattern: Pattern
    rule: Pattern
    q_tokens: Tokens
    k_tokens: Tokens
    tile: int
    parts: tuple[Part, ...]
    rejected: int | None = None

    @property
    def area(self) -> int:
        """How many pairs the parts compute, allowed or not."""
        return sum(area_of(part) for part in self.parts)

    @property
    def cost(self) -> int:
        """What the parts take, in the time of one pair: what two plans are compared by."""
        return sum(_cost(part) for part in self.parts)

    def mask(self, q0: int, rows: int, k0: int, columns: int) -> Tensor:
        """Which pairs of one rectangle of slots ``rule`` allows: bool (rows, columns)."""
        q, k = self.q_tokens.at(slice(q0, q0 + rows)), self.k_tokens.at(slice(k0, k0 + columns))
        return self.rule.sees(q.unsqueeze(1), k)

    def __str__(self) -> str:
        from eyeline.planning.pictures import picture

        drawn = picture(self.pattern, q_tokens=self.q_tokens, k_tokens=self.k_tokens).text()
        return f"{self.summary}\n{drawn}"

    @property
    def summary(self) -> str:
        """The printed form without the picture."""
        sizes = f"{self.q_tokens.length:,} queries × {self.k_tokens.length:,} keys"
        lines = [f"{self.pattern}: {sizes}", *_lines(self, "  ")]
        if self.rejected is not None:
            lines.append(f"  cost {self.cost:,}; in another order at most {self.rejected:,}")
        return "\n".join(lines)


def _lines(made: Plan, indent: str) -> list[str]:
    """What a plan computes: a line for each kind of part, reordered ones in full."""
    lines = [f"{indent}{made.area:,} pairs computed in tiles of {made.tile} and more"]
    blocks = [part for part in made.parts if not isinstance(part, Reordered)]
    for kind in dict.fromkeys(type(part) for part in blocks):
        parts = [part for part in blocks if type(part) is kind]
        area = sum(area_of(part) for part in parts)
        lines.append(f"{indent}{len(parts):>6,} × {kind.__name__.lower():<9} {area:>16,} pairs")
    for part in made.parts:
        if isinstance(part, Reordered):
            q, k = part.plan.q_tokens.length, part.plan.k_tokens.length
            lines.append(f"{indent}reordered, {q:,} queries × {k:,} keys: {part.plan.rule}")
            lines += _lines(part.plan, indent + "  ")
    return lines


def _cost(part: Part) -> int:
    if not isinstance(part, Reordered):
        return area_of(part) + _CALL
    orders = (part.q_order, part.k_order)
    return part.plan.cost + _PLACE * sum(each.slots.shape[1] for each in orders if each is not None)


def area_of(part: Part) -> int:
    """How many pairs a part computes, allowed or not."""
    if isinstance(part, Reordered):
        return part.plan.area
    if isinstance(part, Run):
        return part.count * part.rows * part.columns
    if isinstance(part, Gathered):
        return len(part.q0) * part.rows * part.columns
    return part.rows * part.columns
