"""Pattern: the rule that says who may look at whom. Everything else is derived from it."""

from __future__ import annotations

import dataclasses
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, final

import torch
from torch import Tensor

from eyeline.errors import InvalidArgument
from eyeline.tokens import LARGEST, NOBODY, Points, Tokens

if TYPE_CHECKING:
    from eyeline.patterns.algebra import And, Not, Or

# From two yes-or-no questions about ranges to one verdict.


def from_tests(*, full: Tensor, some: Tensor) -> Tensor:
    """FULL where ``full``, EMPTY where not ``some``, PARTIAL elsewhere.

    full: every pair within the bounds is allowed. some: a pair within the bounds may be allowed.
    Where both hold the answer is FULL = 2, so the two tests simply add up.
    """
    return full.to(torch.uint8) + some.to(torch.uint8)


# Ranges of tokens, and the three answers a pattern gives about a pair of ranges.

EMPTY, PARTIAL, FULL = 0, 1, 2

# Bounds of tokens that nothing is known of: every real position and document lies below.
UNBOUNDED = LARGEST


# A signature column with this value says: nothing is known of this tile's mask.
UNKNOWN = -(1 << 60)


class Bounds(NamedTuple):
    """The least and greatest position, document and segment in each of some ranges of tokens.

    All are int64 and broadcast against the bounds of the other side. A verdict about bounds holds
    for every token that can lie within them.

    modulus, residue_min, residue_max: position % modulus lies between the two. Known where tokens
    were ordered by it, for patterns with a stride; else None, with modulus 1.
    """

    min: Tensor
    max: Tensor
    document_min: Tensor
    document_max: Tensor
    segment_min: Tensor
    segment_max: Tensor
    residue_min: Tensor | None = None
    residue_max: Tensor | None = None
    modulus: int = 1

    @staticmethod
    def of_positions(least: Tensor, most: Tensor) -> Bounds:
        """Ranges of positions in one document and one segment."""
        zero = torch.zeros_like(least)
        return Bounds(least, most, zero, zero, zero, zero)


MaskMod = Callable[[Any, Any, Tensor, Tensor], Tensor]


class View(NamedTuple):
    """Some slots of the queries and of the keys, in the order in which they are best looked at.

    q_slots, k_slots: int64, or None for all slots as they stand. The pattern allows every pair of
    the view. modulus: above 1, it allows only pairs of equal position % modulus, and of these
    every one; slots are then grouped by it.
    """

    q_slots: Tensor | None
    k_slots: Tensor | None
    modulus: int = 1


class Pattern(ABC):
    """allows(q, k) is True where the query at q may look at the key at k.

    A pattern is a frozen value that knows no length and no device. ``&``, ``|`` and ``~`` combine
    patterns. To write one, make a frozen dataclass with ``allows``; add ``verdict`` to have whole
    tiles skipped, and ``signature`` to have equal tiles share one mask.

    Padding (position -1) and slots of another document are excluded outside the algebra: a
    pattern need not ask, and ~pattern does not show them.
    """

    compares_positions = True
    """Whether the answer depends on where tokens stand. If so, more queries than keys need
    explicit tokens."""

    @abstractmethod
    def allows(self, q: Points, k: Points) -> Tensor:
        """True where q may look at k: a bool tensor that broadcasts with q and k."""

    @final
    def sees(self, q: Points, k: Points) -> Tensor:
        """``allows``, with nobody taken out on both sides: what every mask is made of."""
        return self.answers(q, k) & (q.position != NOBODY) & (k.position != NOBODY)

    @final
    def answers(self, q: Points, k: Points) -> Tensor:
        """``allows``, refused if it is not bool: ~0 and ~1 would both be true."""
        allowed = self.allows(q, k)
        if allowed.dtype != torch.bool:
            raise InvalidArgument(f"{self}: allows returned {allowed.dtype}, it must be bool")
        return allowed

    def verdict(self, q: Bounds, k: Bounds) -> Tensor:
        """EMPTY, PARTIAL or FULL for each pair of ranges (uint8).

        Sound: EMPTY and FULL are never wrong. PARTIAL may be pessimistic, and is the default.
        """
        return torch.full_like(q.min + k.min, PARTIAL, dtype=torch.uint8)

    def signature(self, q: Bounds, k: Bounds) -> tuple[Tensor, ...] | None:
        """Integers that decide the mask of a PARTIAL tile, given how its positions are spaced.

        Two tiles whose signatures are equal, and whose queries and keys stand at equal distances
        from their tile's first one, have equal masks. None (the default) means that nothing is
        known; such tiles are evaluated one by one.
        """
        return None

    def spelled_out(self) -> Pattern:
        """The same rule as an expression of simpler atoms, where there is one; else itself."""
        return self

    def views(self, q: Tokens, k: Tokens) -> tuple[View, ...]:
        """Queries and keys, picked and reordered, among which the pattern's pairs lie densely.

        Every allowed pair lies in one of the views. () (the default) means that the order of the
        sequence is best. q, k: one sequence each.
        """
        return ()

    def at(self, batch: int, head: int) -> Pattern:
        """The pattern that holds in one batch row and one head. See ``varies_by``."""
        return self

    def of_length(self, length: int) -> Pattern:
        """The pattern that holds in sequences of one length. See ``varies_by``."""
        return self

    @property
    def varies_by(self) -> frozenset[str]:
        """What else the rule depends on: a subset of {"batch", "head", "length"}."""
        return frozenset()

    def check_call(self, batch: int, heads: int) -> None:  # noqa: B027  (most fit every call)
        """Raise InvalidArgument if the pattern was made for other numbers of rows or heads."""

    def check_length(self, length: int) -> None:  # noqa: B027
        """Raise InvalidArgument if the pattern cannot be meant for a sequence of this length.

        Asked where tokens are omitted, so that positions are 0 … length - 1.
        """

    @property
    def bound(self) -> tuple[Pattern, ...]:
        """The leaves that carry tensors or callables, in the order of the text's #0, #1, …"""
        return ()

    def needed(self, keys: Tokens, next_position: int | Tensor) -> Tensor:
        """Which keys may still be looked at by a query at next_position or later.

        keys: positions of shape (S,) or (B, S); next_position: a number, or int64 (B, 1), in each
        key's own document.
        Returns a bool tensor of the shape of the positions. Sound for every expression; a cache
        evicts exactly the keys for which this is False.
        """
        position = keys.positions
        low = torch.as_tensor(next_position, device=position.device)
        one = torch.zeros_like(position)
        document = keys.documents if keys.documents is not None else one
        segment = keys.segments if keys.segments is not None else one
        far = torch.full_like(low, UNBOUNDED)
        future = Bounds(low, far, -far, far, -far, far)
        verdict = self.verdict(
            future, Bounds(position, position, document, document, segment, segment)
        )
        return (verdict != EMPTY) & (position != NOBODY)

    def mask_mod(self) -> MaskMod:
        """The rule as FlexAttention's mask callable, for one document at positions 0, 1, 2, …"""

        def mask_mod(b: Any, h: Any, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return self.answers(Points.of(q_idx), Points.of(kv_idx))

        return mask_mod

    def __and__(self, other: Pattern) -> And:
        from eyeline.patterns.algebra import And

        return And.of(self, other)

    def __or__(self, other: Pattern) -> Or:
        from eyeline.patterns.algebra import Or

        return Or.of(self, other)

    def __invert__(self) -> Not:
        from eyeline.patterns.algebra import Not

        return Not(self)

    def __bool__(self) -> NoReturn:
        raise TypeError("a pattern has no truth value: combine with & | ~, not and / or / not")

    def __str__(self) -> str:
        from eyeline.patterns.text import format_pattern

        return format_pattern(self)

    @classmethod
    def word(cls) -> str:
        """The pattern's name in text: its class name in lower case with underscores."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()

    def arguments(self) -> dict[str, Any]:
        """What stands between the brackets in text, by name; for a dataclass, all its fields.

        Numbers, None, words, patterns, and lists of these. What equals a field's default is left
        out of the text.
        """
        names = [field.name for field in dataclasses.fields(self)]  # type: ignore[arg-type]
        return {name: getattr(self, name) for name in names}
