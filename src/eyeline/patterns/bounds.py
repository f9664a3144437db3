"""Ranges of tokens, and the three answers a pattern gives about a pair of ranges."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from eyeline.tokens import LARGEST

EMPTY, PARTIAL, FULL = 0, 1, 2

# Bounds of tokens that nothing is known of: every real position and document lies below.
UNBOUNDED = LARGEST


# A signature column with this value says: nothing is known of this tile's mask.
UNKNOWN = -(1 << 60)


class Bounds(NamedTuple):
    """The least and greatest position and document in each of some ranges of tokens.

    All are int64 and broadcast against the bounds of the other side. A verdict about bounds holds
    for every token that can lie within them.

    modulus, residue_min, residue_max: position % modulus lies between the two. Known where tokens
    were ordered by it, for patterns with a stride; else None, with modulus 1.
    """

    min: Tensor
    max: Tensor
    document_min: Tensor
    document_max: Tensor
    residue_min: Tensor | None = None
    residue_max: Tensor | None = None
    modulus: int = 1
