"""Report: what ``convert`` replaced, what it left, and how far the results are from torch's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from eyeline.patterns import Pattern


@final
@dataclass(frozen=True)
class Replaced:
    """One attention module. names: where it stands in the model; more than one if it is tied.

    difference: the greatest |ours - torch's| for a small random input under the full pattern, or
    None where the weights hold no numbers (the meta device).
    """

    names: tuple[str, ...]
    pattern: Pattern
    embed_dim: int
    num_heads: int
    difference: float | None


@final
@dataclass(frozen=True)
class Report:
    """replaced: module by module. left: the name of each attention module that was not, and why.

    inside: torch's encoders and decoders, and their layers, that now look through replaced ones.
    """

    replaced: tuple[Replaced, ...]
    left: tuple[tuple[str, str], ...]
    inside: tuple[str, ...]

    @property
    def difference(self) -> float | None:
        """The greatest of all differences; None if none was measured."""
        return max((x.difference for x in self.replaced if x.difference is not None), default=None)

    def __str__(self) -> str:
        found = "not measured" if self.difference is None else f"{self.difference:.1g}"
        lines = [
            f"{len(self.replaced)} attention modules replaced; "
            f"largest difference under the full pattern: {found}"
        ]
        width = max(len(x.names[0]) for x in self.replaced)
        for each in self.replaced:
            tied = f"  also {', '.join(each.names[1:])}" if len(each.names) > 1 else ""
            off = "" if each.difference is None else f"  {each.difference:.1g}"
            lines.append(
                f"  {each.names[0]:<{width}}  {each.num_heads} heads of "
                f"{each.embed_dim // each.num_heads}{off}  {each.pattern}{tied}"
            )
        lines += [f"  left: {name}: {reason}" for name, reason in self.left]
        return "\n".join(lines)
