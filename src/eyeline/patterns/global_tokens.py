"""A few tokens for everybody: the first of a sequence, and those that also look at everybody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import final

import torch
from torch import Tensor

from eyeline.checks import check_whole
from eyeline.errors import InvalidArgument
from eyeline.memory import remembered
from eyeline.patterns.base import Bounds, MaskMod, Pattern, View, from_tests
from eyeline.tokens import NOBODY, Points, Tokens

# The first tokens of a sequence, which everybody may look at.


@final
@dataclass(frozen=True)
class Sinks(Pattern):
    """allows(i, j) = (j < count), by position: the keys at positions 0 … count - 1.

    Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks": a model that
    reads through a window stays sane while it can also see the first few tokens.

    Raises InvalidArgument for a negative count.
    """

    count: int

    def __post_init__(self) -> None:
        check_whole("sinks count", self.count, least=0)

    def allows(self, q: Points, k: Points) -> Tensor:
        return (k.position < self.count) & (q.position == q.position)

    def verdict(self, q: Bounds, k: Bounds) -> Tensor:
        true = q.min == q.min
        return from_tests(full=(k.max < self.count) & true, some=(k.min < self.count) & true)

    def signature(self, q: Bounds, k: Bounds) -> tuple[Tensor, ...]:
        return (k.min.clamp(max=self.count) + 0 * q.min,)


# A few tokens that look at everybody, and that everybody looks at.


@final
@dataclass(frozen=True)
class Global(Pattern):
    """allows(i, j) = (i in G or j in G), by position: whole rows and whole columns.

    tokens: a number n, for G = {0, …, n - 1}, or the positions in G. Beltagy et al. 2020
    (Longformer); Zaheer et al. 2020 (BigBird, "ITC").

    Raises InvalidArgument for negative positions, and for a position outside the sequence when
    tokens are omitted in the call.
    """

    tokens: int | Sequence[int]

    def __post_init__(self) -> None:
        if isinstance(self.tokens, Sequence):
            for position in self.tokens:
                check_whole("global position", position, least=0)
            object.__setattr__(self, "tokens", tuple(sorted(set(self.tokens))))
        else:
            check_whole("global tokens", self.tokens, least=0)

    def allows(self, q: Points, k: Points) -> Tensor:
        return self._holds(q.position) | self._holds(k.position)

    def verdict(self, q: Bounds, k: Bounds) -> Tensor:
        (q_all, q_some), (k_all, k_some) = self._within(q), self._within(k)
        return from_tests(full=q_all | k_all, some=q_some | k_some)

    def signature(self, q: Bounds, k: Bounds) -> tuple[Tensor, ...]:
        either = 0 * (q.min + k.min)
        # Where a range holds no member, it does not matter where it stands.
        return tuple(torch.where(self._within(x)[1], x.min, NOBODY) + either for x in (q, k))

    def views(self, q: Tokens, k: Tokens) -> tuple[View, ...]:
        if isinstance(self.tokens, int):
            return ()
        queries, keys = self._holds(q.positions), self._holds(k.positions)
        rows, columns = queries.nonzero()[:, 0], keys.nonzero()[:, 0]
        return View(None, columns), View(rows, (~keys).nonzero()[:, 0])

    def check_length(self, length: int) -> None:
        last = self.tokens - 1 if isinstance(self.tokens, int) else max(self.tokens, default=-1)
        if last >= length:
            raise InvalidArgument(
                f"global position {last} lies outside a sequence of {length} tokens, "
                f"at 0 to {length - 1}"
            )

    def mask_mod(self) -> MaskMod:
        """As for every pattern, by comparing alone: a kernel can be made of it."""
        spans = [(0, self.tokens - 1)] if isinstance(self.tokens, int) else _spans(self.tokens)

        def holds(index: Tensor) -> Tensor:
            inside = ((index >= first) & (index <= last) for first, last in spans)
            return reduce(torch.logical_or, inside, index != index)

        return lambda b, h, q_idx, kv_idx: holds(q_idx) | holds(kv_idx)

    def _holds(self, position: Tensor) -> Tensor:
        return self._before(position + 1) > self._before(position)

    def _within(self, x: Bounds) -> tuple[Tensor, Tensor]:
        """Whether all of a range, and whether some of it, is global."""
        count = self._before(x.max + 1) - self._before(x.min)
        return count == x.max - x.min + 1, count > 0

    def _before(self, position: Tensor) -> Tensor:
        """How many members stand before a position."""
        if isinstance(self.tokens, int):
            return position.clamp(min=0, max=self.tokens)
        members = _sorted(tuple(self.tokens)).to(position.device)
        return torch.searchsorted(members, position.contiguous())


def _spans(members: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each stretch of consecutive numbers; members are in order."""
    spans: list[tuple[int, int]] = []
    for member in members:
        if spans and member == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], member)
        else:
            spans.append((member, member))
    return spans


@remembered(64)
def _sorted(members: tuple[int, ...]) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(members, dtype=torch.int64, device="cpu")
