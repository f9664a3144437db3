"""Heads that follow different patterns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NoReturn, final

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument
from eyeline.patterns.algebra import Compound
from eyeline.patterns.base import PARTIAL, Bounds, MaskMod, Pattern
from eyeline.tokens import Points


@final
@dataclass(frozen=True)
class PerHead(Compound):
    """allows(i, j) in head h = members[h].allows(i, j).

    members: one pattern for each query head, in order. ``PerHead([…]) & Causal()`` and all
    other expressions keep the heads apart.

    Raises InvalidArgument for an empty list or for members that are no patterns, and in a call
    whose number of heads is not that of the members.
    """

    members: Sequence[Pattern]

    def __post_init__(self) -> None:
        given: object = self.members
        if not isinstance(given, Sequence):
            raise InvalidArgument(
                f"per_head members is a {type(given).__name__}: give a list of patterns, "
                "one for each head"
            )
        for head, member in enumerate(given):
            if not isinstance(member, Pattern):
                raise InvalidArgument(
                    f"per_head member {head} is a {type(member).__name__}, not a pattern"
                )
        if not given:
            raise InvalidArgument("per_head members is empty: give one pattern for each head")
        object.__setattr__(self, "members", tuple(given))

    @property
    def parts(self) -> tuple[Pattern, ...]:
        return tuple(self.members)

    def rebuild(self, parts: tuple[Pattern, ...]) -> Pattern:
        return PerHead(parts)

    @property
    def varies_by(self) -> frozenset[str]:
        return super().varies_by | {"head"}

    def at(self, batch: int, head: int) -> Pattern:
        if not 0 <= head < len(self.members):
            raise InvalidArgument(
                f"per_head has {len(self.members)} patterns, none for head {head}"
            )
        return self.members[head].at(batch, head)

    def check_call(self, batch: int, heads: int) -> None:
        if heads != len(self.members):
            raise InvalidArgument(
                f"per_head has {len(self.members)} patterns; the call has {heads} query heads"
            )
        super().check_call(batch, heads)

    def allows(self, q: Points, k: Points) -> NoReturn:
        raise InvalidArgument(f"{self} differs per head: choose one with pattern.at(batch, head)")

    def verdict(self, q: Bounds, k: Bounds) -> Tensor:
        """What all heads agree on, else PARTIAL."""
        every = [member.verdict(q, k) for member in self.members]
        least, most = (reduce(join, every) for join in (torch.minimum, torch.maximum))
        return torch.where(least == most, least, PARTIAL)

    def mask_mod(self) -> MaskMod:
        mods = [member.mask_mod() for member in self.members]

        def mask_mod(b: Any, h: Any, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            own: list[Tensor] = [
                mod(b, h, q_idx, kv_idx) & (h == head) for head, mod in enumerate(mods)
            ]
            return reduce(torch.logical_or, own[1:], own[0])

        return mask_mod
