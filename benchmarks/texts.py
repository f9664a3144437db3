"""Texts and lengths to measure with: the same for everybody, without a network."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol


class Encodes(Protocol):
    """A tokenizer."""

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Ids of the text."""


@lru_cache(maxsize=1)
def reference_text() -> str:
    """Python's own language reference, from the standard library, in a fixed order."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def reference_ids(tokenizer: Encodes | None, count: int) -> list[int]:
    """The first `count` ids of the language reference."""
    assert tokenizer is not None
    ids = tokenizer.encode(reference_text()[: 8 * count + 1000])
    assert len(ids) >= count
    return ids[:count]


def mixed_lengths(total: int, longest: int, shortest: int = 8) -> Sequence[int]:
    """Lengths drawn evenly from shortest … longest until they sum to `total`; the last is cut."""
    draw, lengths = random.Random(0), [shortest, min(longest, total // 2)]
    while sum(lengths) < total:
        lengths.append(min(draw.randint(shortest, longest), total - sum(lengths)))
    return lengths
