"""What `eyeline plan` finds out about a pattern at a length, before it is shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch

from eyeline.cli.output import environment
from eyeline.errors import EyelineError, InvalidArgument
from eyeline.exact.call import make_request
from eyeline.exact.dispatch import reasons
from eyeline.patterns import Pattern
from eyeline.planning import Plan, looks_ahead, pairs, plan
from eyeline.planning.cost import Cost, cost
from eyeline.planning.parts import Reordered, area_of
from eyeline.planning.path_length import max_path_length
from eyeline.planning.pictures import Picture, picture
from eyeline.tokens import default_tokens


@dataclass(frozen=True)
class Asked:
    """A pattern, the sizes of a call, and the head to show where heads differ.

    pattern: as it is at this length. shown: as it is in that head.
    """

    pattern: Pattern
    shown: Pattern
    shown_head: int | None
    queries: int
    keys: int
    heads: int
    dim: int
    dtype: torch.dtype
    backward: bool

    @staticmethod
    def of(
        pattern: Pattern,
        queries: int,
        keys: int,
        *,
        heads: int,
        dim: int,
        dtype: str,
        backward: bool,
        head: int | None,
    ) -> Asked:
        """Raises InvalidArgument for a head that is not there, and sizes that do not fit."""
        if head is not None and head >= heads:
            raise InvalidArgument(
                f"--head {head}: heads are counted from 0, and --heads is {heads}"
            )
        pattern.check_call(1, heads)
        pattern.check_length(keys)
        settled = pattern.of_length(keys)
        chosen = head if head is not None else 0
        varies = "head" in settled.varies_by
        shown = settled.at(0, chosen)
        kind: torch.dtype = getattr(torch, dtype)
        return Asked(
            settled, shown, chosen if varies else None, queries, keys, heads, dim, kind, backward
        )


class Kept(NamedTuple):
    """keys: how many a cache holds while the last token is read, it included; bytes of all heads.

    None, with the reason, where nothing is written token by token under the pattern.
    """

    keys: int | None
    bytes: int | None
    refusal: str | None


@dataclass(frozen=True)
class Report:
    """pairs: in the head that is shown; cost: of the whole call.

    path: the most layers until every token has heard of every one it can, or why it is not known.
    kernels: what each answers to the call.
    """

    asked: Asked
    picture: Picture
    pairs: int
    cost: Cost
    path: int | str
    cache: Kept
    plan: Plan
    kernels: dict[str, str]

    @property
    def kernel(self) -> str:
        """The one that serves the call."""
        return next(name for name, said in self.kernels.items() if said == "chosen")

    @property
    def parts(self) -> dict[str, tuple[int, int]]:
        """How many parts of each kind the plan has, and how many pairs these compute."""
        return _kinds(self.plan)


_STAGES = ("picture", "plan", "cost", "longest path", "cache", "kernels")


def report(asked: Asked, *, progress: Callable[[str, int, int], object]) -> Report:
    """Everything about the pattern. progress: called with what is done, how far, of how much."""

    def stage(name: str) -> None:
        progress(name, _STAGES.index(name), len(_STAGES))

    sizes = asked.queries, asked.keys
    stage("picture")
    drawn = picture(asked.shown, *sizes)
    stage("plan")
    made = plan(asked.shown, *sizes)
    stage("cost")
    whole = cost(
        asked.pattern, *sizes,
        heads=asked.heads, head_dim=asked.dim, dtype=asked.dtype, backward=asked.backward,
    )  # fmt: skip
    alike = asked.shown_head is None or asked.heads == 1
    count = whole.pairs // asked.heads if alike else pairs(asked.shown, *sizes)
    stage("longest path")
    path = _path(asked)
    stage("cache")
    kept = _kept(asked)
    stage("kernels")
    return Report(asked, drawn, count, whole, path, kept, made, _kernels(asked))


def _path(asked: Asked) -> int | str:
    if asked.queries != asked.keys:
        return "paths are for as many queries as keys"
    try:
        return max_path_length(asked.pattern, asked.keys, heads=asked.heads)
    except EyelineError as refusal:
        return str(refusal)


def _kept(asked: Asked) -> Kept:
    if looks_ahead(asked.pattern, asked.keys, heads=asked.heads):
        return Kept(None, None, "tokens look at later ones, so none can be written after another")
    keys = asked.pattern.needed(default_tokens(asked.keys, asked.keys)[1], asked.keys - 1)
    count = int(keys.sum())
    return Kept(count, count * asked.heads * 2 * asked.dim * asked.dtype.itemsize, None)


def _kernels(asked: Asked) -> dict[str, str]:
    """Tensors of one number each, seen as whole ones: nothing of the length is allocated."""
    number = torch.zeros(1, dtype=asked.dtype, requires_grad=asked.backward)
    query, key = (
        number.expand(1, asked.heads, size, asked.dim) for size in (asked.queries, asked.keys)
    )
    with torch.set_grad_enabled(asked.backward):
        request = make_request(
            query, key, key, asked.pattern, scale=None, q_tokens=None, k_tokens=None
        )
        return reasons(request)


def _kinds(made: Plan, prefix: str = "") -> dict[str, tuple[int, int]]:
    count: Counter[str] = Counter()
    area: Counter[str] = Counter()
    for part in made.parts:
        inner = (
            _kinds(part.plan, f"{prefix}reordered ")
            if isinstance(part, Reordered)
            else {f"{prefix}{type(part).__name__.lower()}": (1, area_of(part))}
        )
        for name, (parts, computed) in inner.items():
            count[name] += parts
            area[name] += computed
    return {name: (count[name], area[name]) for name in count}


def answer(found: Report) -> dict[str, Any]:
    """The report as one JSON object."""
    asked = found.asked
    refused = isinstance(found.path, str)
    return {
        "pattern": str(asked.pattern),
        "length": asked.queries,
        "key_length": asked.keys,
        "heads": asked.heads,
        "dim": asked.dim,
        "dtype": str(asked.dtype).removeprefix("torch."),
        "backward": asked.backward,
        "head": asked.shown_head,
        "pairs": found.pairs,
        "share": found.pairs / (asked.queries * asked.keys),
        "cost": {**asdict(found.cost), "share": found.cost.share},
        "path_length": None if refused else found.path,
        "path_length_refusal": found.path if refused else None,
        "cache": found.cache._asdict(),
        "plan": {
            "tile": found.plan.tile,
            "computed": found.plan.area,
            "parts": {
                name: {"count": count, "computed": computed}
                for name, (count, computed) in found.parts.items()
            },
        },
        "kernel": found.kernel,
        "kernels": found.kernels,
        "picture": {
            "cell": found.picture.cell,
            "exact": bool(found.picture.exact.all()),
            "shares": found.picture.shares.tolist(),
        },
        "environment": environment(),
    }
