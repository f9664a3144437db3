"""From an operator's arguments back to a request: what happens when a compiled graph runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

from torch import Tensor

from eyeline.errors import NotSupported
from eyeline.functional.packed import CURVES, Packed, entries
from eyeline.functional.recent import recent_tokens
from eyeline.kernels import scoring
from eyeline.kernels.request import Request
from eyeline.scores import Dropout, Softcap, Step
from eyeline.tokens import Tokens, default_tokens


class _Made(NamedTuple):
    """A step, its table if it has one, and the distance of the table's first entry."""

    step: Step
    table: Tensor | None = None
    first: int = 0


@final
@dataclass(frozen=True, eq=False)
class Unpacked:
    """The request; for each of its steps the table, if it has one, and its first distance."""

    request: Request
    tables: tuple[Tensor | None, ...]
    firsts: tuple[int, ...]

    def by_step(self, wanted: Sequence[bool]) -> list[bool]:
        """What is said of each table, said of each step."""
        each = iter(wanted)
        return [table is not None and next(each) for table in self.tables]


def unpack(packed: Packed, *, wants_lse: bool) -> Unpacked:
    """What was packed. Its steps look up in their tables what their curves would give.

    Raises InvalidArgument for tokens that cannot be right, and NotSupported for positions so far
    apart that a table does not hold all distances.
    """
    tokens = _tokens(packed)
    scale, *numbers = packed.numbers
    made = _steps(packed, tokens, numbers)
    tensors, steps = (packed.query, packed.key, packed.value), tuple(each.step for each in made)
    request = Request(*tensors, packed.rule(), *tokens, scale, wants_lse, steps)
    tables, firsts = tuple(each.table for each in made), tuple(each.first for each in made)
    return Unpacked(request, tables, firsts)


def _tokens(packed: Packed) -> tuple[Tokens, Tokens]:
    if packed.q_positions is None or packed.k_positions is None:
        return default_tokens(packed.query.shape[2], packed.key.shape[2])
    q = recent_tokens(packed.q_positions, packed.q_documents)
    return q, recent_tokens(packed.k_positions, packed.k_documents)


def _steps(packed: Packed, tokens: tuple[Tokens, Tokens], numbers: list[float]) -> list[_Made]:
    tables, others, made = iter(packed.tables), iter(numbers), []
    for entry in entries(packed.steps):
        word, *first = entry.split()
        if word in CURVES:
            table = next(tables)
            start = int(first[0]) if first else _start(table, tokens)
            made.append(_Made(CURVES[word](_reader(table, start)), table, start))
        elif word == "softcap":
            made.append(_Made(Softcap(next(others))))
        else:
            assert packed.seed is not None
            made.append(_Made(Dropout(next(others), int(packed.seed))))
    return made


def _start(table: Tensor, tokens: tuple[Tokens, Tokens]) -> int:
    """The least distance of the tokens, with which the table begins."""
    least, most = scoring.span(*tokens)
    if most - least >= table.shape[1]:
        raise NotSupported(
            f"positions lie up to {most - least:,} apart: inside torch.compile a score modifier "
            f"that tells all distances apart has a table of {table.shape[1]:,}, for positions "
            "without gaps"
        )
    return least


def _reader(table: Tensor, first: int) -> Callable[[Tensor], Tensor]:
    """The curve that a table was made of; a distance beyond its ends reads the nearest entry."""

    def curve(distances: Tensor) -> Tensor:
        return table[:, (distances - first).clamp(0, table.shape[1] - 1)]

    return curve
