"""Turns are taken, medians are medians, and the crossover lies where the lines cross."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from eyeline.measuring.timing import (
    Ratio,
    Stages,
    Times,
    alternate,
    by_turns,
    crossover,
    prepared,
    ratio,
    repeated_median,
    timed,
)


class Clock:
    """Time that passes only while something runs: as long as ``lasts`` says, run by run."""

    def __init__(self, patch: pytest.MonkeyPatch, **lasts: tuple[float, ...]) -> None:
        self.now, self.order = 0.0, list[str]()
        self._lasts = {name: iter(seconds) for name, seconds in lasts.items()}
        patch.setattr("eyeline.measuring.timing.perf_counter", lambda: self.now)

    def run(self, name: str) -> Callable[[], None]:
        def run() -> None:
            self.order.append(name)
            self.now += next(self._lasts[name])

        return run


def test_runs_take_turns_and_the_first_round_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch, a=(100.0, 1.0, 9.0, 2.0), b=(100.0, 5.0, 5.0, 7.0))
    told: list[tuple[str, int, int]] = []
    runs = {name: clock.run(name) for name in "ab"}
    found = by_turns(runs, rounds=3, progress=lambda *step: told.append(step))
    assert clock.order == [*"ba", *"ab", *"ba", *"ab"]
    assert found == {"a": 2.0, "b": 5.0}
    assert told == [("timing", done, 8) for done in range(9)]


def test_each_round_begins_with_another_case(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, a=(9.0, 1.0, 2.0), b=(9.0, 2.0, 1.0), c=(9.0, 4.0, 4.0))
    told: list[tuple[str, int, float]] = []
    cases = {name: timed(clock.run(name)) for name in "abc"}
    times = alternate(cases, rounds=2, tell=lambda *step: told.append(step))
    assert clock.order == [*"cab", *"abc", *"bca"]
    assert told[:4] == [("c", -1, 9.0), ("a", -1, 9.0), ("b", -1, 9.0), ("a", 0, 1.0)]
    assert times["a"] == Times((1.0, 2.0)) and times["a"].spread == (1.0, 2.0)
    assert times["c"].median == 4.0
    assert ratio(times["a"], times["b"]) == Ratio(1.0, 0.5, 2.0)
    assert alternate({}, rounds=2) == {}


def test_what_is_prepared_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, making=(70.0,) * 3, work=(1.0, 3.0, 2.0))

    def prepare() -> Callable[[], None]:
        clock.run("making")()
        return clock.run("work")

    assert repeated_median(prepared(prepare), 3) == 2.0


@pytest.mark.parametrize(
    ("speedups", "length"),
    [
        ([0.5, 2.0, 4.0], 200.0),  # half way between 100 and 400, in logarithms
        ([0.5, 0.25, 4.0], 800.0),
        ([0.5, 1.0, 4.0], 400.0),
        ([1.0, 2.0, 4.0], 100.0),
        ([2.0, 0.5, 2.0], 800.0),  # from where on it stays faster
        ([0.5, 0.6, 0.9], None),
        ([2.0, 2.0, 0.9], None),
    ],
)
def test_crossover(speedups: list[float], length: float | None) -> None:
    found = crossover([100, 400, 1600], speedups)
    assert found == (None if length is None else pytest.approx(length))


def test_stages_add_up_to_the_whole() -> None:
    told: list[tuple[str, int, int]] = []
    stages = Stages(10, lambda *step: told.append(step))
    with stages.stage("one", 4) as within:
        within("half", 1, 2)
    with stages.stage("two", 6) as within:
        within("nothing to do", 0, 0)
    assert told == [
        ("one", 0, 10), ("one", 2, 10), ("one", 4, 10), ("two", 4, 10), ("two", 4, 10),
        ("two", 10, 10),
    ]  # fmt: skip
