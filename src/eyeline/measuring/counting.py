"""The computed half of the table: what each layer takes, and how that grows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from eyeline.errors import InvalidArgument, NotSupported
from eyeline.measuring.kinds import Kind
from eyeline.measuring.progress import Progress, silent


@dataclass(frozen=True)
class Counted:
    """One layer of ``width`` with ``heads`` heads, forward, for one row of ``length`` tokens.

    multiplications: of its formula, beside the projections, which are counted in ``projections``;
    computed: those that are made, with tiles, chunks and padding. growth_in_length, and _width:
    log₂ of how many times more ``multiplications`` are if length, or width, doubles (as many heads,
    twice as wide). steps: how many must wait for each other. path: layers until all have heard of
    all they ever can; None where that is not known, for the reason in ``unknown``.
    """

    label: str
    multiplications: int
    computed: int
    projections: int
    growth_in_length: float
    growth_in_width: float
    steps: int
    path: int | None
    unknown: str | None = None


@dataclass(frozen=True)
class Counts:
    """The table at one length."""

    length: int
    width: int
    heads: int
    rows: tuple[Counted, ...]


def count(
    kinds: Sequence[Kind], length: int, width: int, heads: int, *, progress: Progress = silent
) -> Counts:
    """Counts every kind; nothing is run. Raises InvalidArgument for sizes below 1."""
    for name, size in (("length", length), ("width", width), ("heads", heads)):
        if size < 1:
            raise InvalidArgument(f"{name}={size}: at least 1")
    rows = []
    for place, kind in enumerate(kinds):
        progress(f"counting {kind.label}", place, len(kinds))
        rows.append(_counted(kind, length, width, heads))
    return Counts(length, width, heads, tuple(rows))


def _counted(kind: Kind, length: int, width: int, heads: int) -> Counted:
    here = kind.work(length, width, heads)
    longer = kind.work(2 * length, width, heads).multiplications
    wider = kind.work(length, 2 * width, heads).multiplications
    path, unknown = None, None
    try:
        path = kind.path(length, heads)
    except NotSupported as refusal:
        unknown = str(refusal)
    return Counted(
        label=kind.label,
        multiplications=here.multiplications,
        computed=here.computed_multiplications,
        projections=here.projections,
        growth_in_length=_growth(here.multiplications, longer),
        growth_in_width=_growth(here.multiplications, wider),
        steps=here.steps,
        path=path,
        unknown=unknown,
    )


def _growth(one: int, two: int) -> float:
    return math.log2(two / one) if one and two else 0.0
