"""The algebra of patterns: & is the smaller of two verdicts, | the greater, ~ is 2 - v."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import final

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument
from eyeline.patterns.base import FULL, PARTIAL, UNKNOWN, Bounds, MaskMod, Pattern
from eyeline.tokens import Points


class Compound(Pattern):
    """A pattern made of others. Its questions are answered by asking them."""

    @property
    @abstractmethod
    def parts(self) -> tuple[Pattern, ...]:
        """The patterns it is made of."""

    @abstractmethod
    def rebuild(self, parts: tuple[Pattern, ...]) -> Pattern:
        """The same combination of other patterns."""

    @property
    def compares_positions(self) -> bool:  # type: ignore[override]
        return any(part.compares_positions for part in self.parts)

    @property
    def varies_by(self) -> frozenset[str]:
        return frozenset().union(*(part.varies_by for part in self.parts))

    @property
    def bound(self) -> tuple[Pattern, ...]:
        return tuple(leaf for part in self.parts for leaf in part.bound)

    def at(self, batch: int, head: int) -> Pattern:
        return self.rebuild(tuple(part.at(batch, head) for part in self.parts))

    def of_length(self, length: int) -> Pattern:
        return self.rebuild(tuple(part.of_length(length) for part in self.parts))

    def check_call(self, batch: int, heads: int) -> None:
        for part in self.parts:
            part.check_call(batch, heads)

    def check_length(self, length: int) -> None:
        for part in self.parts:
            part.check_length(length)

    def signature(self, q: Bounds, k: Bounds) -> tuple[Tensor, ...]:
        columns: list[Tensor] = []
        for part in self.parts:
            verdict = part.verdict(q, k)
            columns.append(verdict.to(torch.int64))
            own = part.signature(q, k)
            unknown = (torch.full_like(columns[-1], UNKNOWN),)
            # A part that is sure of a tile adds nothing: its mask there is all or nothing.
            unsure = verdict == PARTIAL
            columns.extend(
                torch.where(unsure, column, 0) for column in (own if own is not None else unknown)
            )
        return tuple(columns)


@dataclass(frozen=True)
class _Chain(Compound):
    members: tuple[Pattern, ...]

    @property
    def parts(self) -> tuple[Pattern, ...]:
        return self.members

    def rebuild(self, parts: tuple[Pattern, ...]) -> Pattern:
        return type(self)(parts)

    def __post_init__(self) -> None:
        if len(self.members) < 2:
            raise InvalidArgument(f"{self.word()} joins at least two patterns")
        for member in self.members:
            if not isinstance(member, Pattern):
                raise TypeError(
                    f"a pattern cannot be combined with a {type(member).__name__}; "
                    "a bool tensor becomes one as Explicit(tensor)"
                )
        flat: list[Pattern] = []
        for member in self.members:
            flat.extend(member.parts if isinstance(member, type(self)) else (member,))
        object.__setattr__(self, "members", tuple(flat))

    def _fold(self, ask: Callable[[Pattern], Tensor], join: Callable[..., Tensor]) -> Tensor:
        return reduce(join, (ask(member) for member in self.members))

    def _folded_mods(self, join: Callable[..., Tensor]) -> MaskMod:
        mods = [member.mask_mod() for member in self.members]
        return lambda b, h, q, k: reduce(join, (mod(b, h, q, k) for mod in mods))


@final
@dataclass(frozen=True)
class And(_Chain):
    """allows(i, j) = every member allows it."""

    @staticmethod
    def of(*patterns: Pattern) -> And:
        return And(patterns)

    def allows(self, q: Points, k: Points) -> Tensor:
        return self._fold(lambda member: member.answers(q, k), torch.logical_and)

    def verdict(self, q: Bounds, k: Bounds) -> Tensor:
        return self._fold(lambda member: member.verdict(q, k), torch.minimum)

    def mask_mod(self) -> MaskMod:
        return self._folded_mods(torch.logical_and)


@final
@dataclass(frozen=True)
class Or(_Chain):
    """allows(i, j) = some member allows it."""

    @staticmethod
    def of(*patterns: Pattern) -> Or:
        return Or(patterns)

    def allows(self, q: Points, k: Points) -> Tensor:
        return self._fold(lambda member: member.answers(q, k), torch.logical_or)

    def verdict(self, q: Bounds, k: Bounds) -> Tensor:
        return self._fold(lambda member: member.verdict(q, k), torch.maximum)

    def mask_mod(self) -> MaskMod:
        return self._folded_mods(torch.logical_or)


@final
@dataclass(frozen=True)
class Not(Compound):
    """allows(i, j) = the inner pattern does not. Nobody stays nobody: pads are not shown."""

    inner: Pattern

    @property
    def parts(self) -> tuple[Pattern, ...]:
        return (self.inner,)

    def rebuild(self, parts: tuple[Pattern, ...]) -> Pattern:
        return Not(*parts)

    def allows(self, q: Points, k: Points) -> Tensor:
        return ~self.inner.answers(q, k)

    def verdict(self, q: Bounds, k: Bounds) -> Tensor:
        return FULL - self.inner.verdict(q, k)

    def mask_mod(self) -> MaskMod:
        inner = self.inner.mask_mod()
        return lambda b, h, q, k: ~inner(b, h, q, k)
