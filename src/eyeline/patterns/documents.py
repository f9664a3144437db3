"""Packed documents do not see each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from eyeline.patterns.base import Pattern
from eyeline.patterns.bounds import Bounds
from eyeline.patterns.verdicts import from_tests
from eyeline.tokens import Points


@final
@dataclass(frozen=True)
class SameDocument(Pattern):
    """allows(i, j) = (document(i) = document(j)); documents come from ``Tokens.documents``.

    Tiles that a document's edge cuts have no signature: their masks are made when they are used.
    """

    compares_positions = False

    def allows(self, q: Points, k: Points) -> Tensor:
        return q.document == k.document

    def verdict(self, q: Bounds, k: Bounds) -> Tensor:
        overlap = (q.document_min <= k.document_max) & (k.document_min <= q.document_max)
        q_single = q.document_min == q.document_max
        k_single = k.document_min == k.document_max
        return from_tests(full=overlap & q_single & k_single, some=overlap)
