"""Writing at position 8,000 against position 600 under streaming: speed, and bytes of the cache."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

from eyeline.caches import Cache
from eyeline.generation import stream
from eyeline.loading import Loaded
from eyeline.measuring.timing import prepared, ratio
from eyeline.patterns import streaming

from .harness import alternate
from .pretrained import ours
from .report import Report
from .settings import MODEL, Settings
from .texts import reference_ids

SIZE, SINKS = 512, 4


def run(settings: Settings) -> None:
    near, far = settings.size(600, 600), settings.size(8000, 1100)
    count = settings.size(64, 8)
    pattern = streaming(SIZE, SINKS)
    report = Report(
        "position",
        f"Writing far into a text under streaming({SIZE}, {SINKS})",
        settings,
        ["position", "dtype", "tokens/s", "ms a token", "cache MB", "slots"],
        {"model": MODEL, "pattern": str(pattern), "written tokens": count},
    )
    for dtype in settings.dtypes:
        loaded = ours(dtype, pattern)
        _measure(report, loaded, dtype, places=(near, far), count=count)
    report.finish()


def _measure(
    report: Report, loaded: Loaded, dtype: str, *, places: tuple[int, int], count: int
) -> None:
    read = {place: _read(loaded, place) for place in places}
    works = {
        f"position {place:,}": prepared(_writer(loaded, *state, count))
        for place, state in read.items()
    }
    # Rounds are short, so there are more of them.
    rounds = report.settings.rounds * (1 if report.settings.quick else 2)
    times = alternate(works, rounds=rounds, label=f"position {dtype}")
    report.keep(dtype, times)
    held = [sum(cache.nbytes for cache in caches) for _, caches in read.values()]
    for (name, found), size, (_, caches) in zip(times.items(), held, read.values(), strict=True):
        each = found.median / count
        slots = sum(cache.length for cache in caches)
        report.rows.append([name, dtype, 1 / each, each * 1e3, size / 1e6, slots])
    near, far = times.values()
    report.ratio(f"{dtype}: speed at {places[1]:,} over {places[0]:,}", ratio(near, far), 0.9)
    report.most(
        f"{dtype}: cache bytes at {places[1]:,} over {places[0]:,}", held[1] / held[0], "×", 1.0
    )


def _read(loaded: Loaded, place: int) -> tuple[int, Sequence[Cache]]:
    """A text read up to the place: the id that follows, and what the model remembers."""
    ids = reference_ids(loaded.tokenizer, place)
    writing = stream(loaded.model, ids, max_new_tokens=1)
    return next(writing), writing.caches


def _writer(
    loaded: Loaded, first: int, caches: Sequence[Cache], count: int
) -> Callable[[], Callable[[], object]]:
    """Writes always from the same place: each time on a copy of the caches."""

    def prepare() -> Callable[[], object]:
        own = copy.deepcopy(caches)
        return lambda: list(stream(loaded.model, [first], max_new_tokens=count, caches=own))

    return prepare
