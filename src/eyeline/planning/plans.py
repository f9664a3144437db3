"""Plan: what planning makes. Its parts, what they compute and cost, and its printed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from eyeline.patterns import Pattern
from eyeline.planning.parts import Gathered, Part, Reordered, Run
from eyeline.tokens import Points, Tokens

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
        return sum(_area(part) for part in self.parts)

    @property
    def cost(self) -> int:
        """What the parts take, in the time of one pair: what two plans are compared by."""
        return sum(_cost(part) for part in self.parts)

    def mask(self, q0: int, rows: int, k0: int, columns: int) -> Tensor:
        """Which pairs of one rectangle of slots ``rule`` allows: bool (rows, columns)."""
        q, k = self.q_tokens.at(slice(q0, q0 + rows)), self.k_tokens.at(slice(k0, k0 + columns))
        return self.rule.sees(Points(*(x[:, None] for x in q)), k)

    def __str__(self) -> str:
        from eyeline.planning.picture import picture

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
        area = sum(_area(part) for part in parts)
        lines.append(f"{indent}{len(parts):>6,} × {kind.__name__.lower():<9} {area:>16,} pairs")
    for part in made.parts:
        if isinstance(part, Reordered):
            q, k = part.plan.q_tokens.length, part.plan.k_tokens.length
            lines.append(f"{indent}reordered, {q:,} queries × {k:,} keys: {part.plan.rule}")
            lines += _lines(part.plan, indent + "  ")
    return lines


def _cost(part: Part) -> int:
    if not isinstance(part, Reordered):
        return _area(part) + _CALL
    orders = (part.q_order, part.k_order)
    return part.plan.cost + _PLACE * sum(len(each.slots) for each in orders if each is not None)


def _area(part: Part) -> int:
    if isinstance(part, Reordered):
        return part.plan.area
    if isinstance(part, Run):
        return part.count * part.rows * part.columns
    if isinstance(part, Gathered):
        return len(part.q0) * part.rows * part.columns
    return part.rows * part.columns
